// Package app wires adapters to ports. It is the only place that knows every adapter: which URL
// means which store or bus, which launch kind has which launcher, and which error class has which
// exit code. Deployables (functions/reprieve, functions/lambda ...) are thin mains on top of it.
package app

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/file"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
	"github.com/reprieve-dev/reprieve/infra/blob/s3"
	"github.com/reprieve-dev/reprieve/infra/bus"
	busmem "github.com/reprieve-dev/reprieve/infra/bus/mem"
	"github.com/reprieve-dev/reprieve/infra/bus/nats"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

// Defaults of the times that supervisors and the control plane have to agree on.
const (
	DefaultLease          = 30 * time.Second
	DefaultLaunchDeadline = 5 * time.Minute
)

// Settings are what every command knows.
type Settings struct {
	Store    string // URL
	Bus      string // URL
	StateDir string // local state: sockets, nodes of the local launcher, the embedded bus
	Lease    time.Duration
	Log      *slog.Logger
}

// OpenStore opens the store and returns its uid. A store that has not been used before is probed
// for conditional writes first. ErrInvalid (the URL), ErrPermanent (not usable), ErrUnavailable.
func (s Settings) OpenStore(ctx context.Context) (blob.Store, string, error) {
	store, err := openStore(ctx, s.Store)
	if err != nil {
		return nil, "", err
	}
	uid, err := blob.Identify(ctx, store, NewID)
	if err != nil {
		return nil, "", fmt.Errorf("open store %s: %w", s.Store, err)
	}
	return store, uid, nil
}

func openStore(ctx context.Context, raw string) (blob.Store, error) {
	if raw == "" {
		return nil, fmt.Errorf("%w: --store is missing: give one such as file:///var/lib/reprieve or s3://bucket/prefix (or set REPRIEVE_STORE)", handlers.ErrInvalid)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: --store %q: %w", handlers.ErrInvalid, raw, err)
	}
	if u.Fragment != "" || u.Scheme == "file" && u.RawQuery != "" {
		return nil, fmt.Errorf("%w: --store %q: write # as %%23 and ? as %%3F in a path", handlers.ErrInvalid, raw)
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, fmt.Errorf("%w: --store %q: write an absolute path after file://, such as file:///var/lib/reprieve", handlers.ErrInvalid, raw)
		}
		return file.Open(u.Path)
	case "s3":
		return s3.Open(ctx, u)
	case "mem":
		return mem.New(time.Now), nil
	case "gs", "azblob":
		return nil, fmt.Errorf("%w: --store %q: this version has file://, s3:// and mem://", handlers.ErrInvalid, raw)
	}
	return nil, fmt.Errorf("%w: --store %q: begin it with file://, s3:// or mem://", handlers.ErrInvalid, raw)
}

// OpenCatalog is OpenStore with the documents on top.
func (s Settings) OpenCatalog(ctx context.Context) (*catalog.Catalog, string, error) {
	store, uid, err := s.OpenStore(ctx)
	if err != nil {
		return nil, "", err
	}
	return &catalog.Catalog{Store: store, Now: time.Now}, uid, nil
}

// NoBus is the URL of no bus at all.
const NoBus = "none"

// OpenBus opens the bus of the settings; it must not be NoBus.
func (s Settings) OpenBus(ctx context.Context) (bus.Bus, error) {
	switch scheme, _, _ := strings.Cut(s.Bus, "://"); scheme {
	case "nats", "tls", "nats+embedded":
		return nats.Open(ctx, s.Bus, nats.Options{Dir: filepath.Join(s.StateDir, "nats"), Log: s.Log})
	case "mem":
		return busmem.New(0), nil
	case NoBus, "":
		return nil, fmt.Errorf("%w: --bus is missing: give one such as nats://host:4222 (or set REPRIEVE_BUS)", handlers.ErrInvalid)
	case "pubsub", "eventbridge":
		return nil, fmt.Errorf("%w: --bus %q: this version has nats://, nats+embedded:// and none", handlers.ErrInvalid, s.Bus)
	}
	return nil, fmt.Errorf("%w: --bus %q: begin it with nats:// or nats+embedded://, or write none", handlers.ErrInvalid, s.Bus)
}

// NewID returns a random id of 128 bits in hex.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Publish publishes the outbox of job and clears it.
func Publish(ctx context.Context, b bus.Bus, c *catalog.Catalog, job handlers.Job) error {
	if len(job.Outbox) == 0 {
		return nil
	}
	if err := b.Publish(ctx, job.Outbox...); err != nil {
		return err
	}
	return c.Published(ctx, job.Outbox)
}

// ParseNode reads PROVIDER/INSTANCE.
func ParseNode(s string) (events.Node, error) {
	provider, instance, _ := strings.Cut(s, "/")
	if provider == "" || instance == "" {
		return events.Node{}, fmt.Errorf("%w: --node %q: write PROVIDER/INSTANCE, such as aws/i-0123456789abcdef0", handlers.ErrInvalid, s)
	}
	return events.Node{Provider: provider, Instance: instance}, nil
}

// DefaultStateDir is where local state goes unless told otherwise.
func DefaultStateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "reprieve")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "reprieve")
	}
	return filepath.Join(os.TempDir(), "reprieve")
}
