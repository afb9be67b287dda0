package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/launch"
	"github.com/reprieve-dev/reprieve/infra/launch/local"
)

// launchers picks the launcher by the kind of a job's launch spec.
type launchers map[string]handlers.Launcher

// Launchers returns the launchers of this version.
func (s Settings) Launchers(storeUID string) handlers.Launcher {
	return launchers{
		"local": local.New(local.Config{Root: s.LocalRoot(), StoreUID: storeUID, Env: s.inherited(), Log: s.Log}),
	}
}

// inherited is what launched nodes see: the environment, and the settings that they have to share,
// however those were given here.
func (s Settings) inherited() []string {
	env := append(os.Environ(), "REPRIEVE_STORE="+s.Store, "REPRIEVE_LEASE="+s.Lease.String(), "REPRIEVE_STATE_DIR="+s.StateDir)
	if strings.HasPrefix(s.Bus, "nats://") || strings.HasPrefix(s.Bus, "tls://") {
		env = append(env, "REPRIEVE_BUS="+s.Bus)
	}
	return env
}

// LocalRoot is where the nodes of the local launcher live.
func (s Settings) LocalRoot() string { return filepath.Join(s.StateDir, "local") }

func (l launchers) of(job handlers.Job) (handlers.Launcher, error) {
	if job.Launch == nil {
		return nil, fmt.Errorf("%w: %s has no launch spec: give one with `reprieve jobs submit --launch FILE`", handlers.ErrInvalid, job.Name)
	}
	launcher := l[job.Launch.Kind]
	if launcher == nil {
		return nil, fmt.Errorf("%w: launch kind %q of %s: this version has local", handlers.ErrInvalid, job.Launch.Kind, job.Name)
	}
	return launcher, nil
}

// Launch implements handlers.Launcher.
func (l launchers) Launch(ctx context.Context, job handlers.Job) error {
	launcher, err := l.of(job)
	if err != nil {
		return err
	}
	return launcher.Launch(ctx, job)
}

// Status implements handlers.Launcher.
func (l launchers) Status(ctx context.Context, job handlers.Job) (handlers.LaunchStatus, error) {
	launcher, err := l.of(job)
	if err != nil {
		return "", err
	}
	return launcher.Status(ctx, job)
}

// ReadLaunch reads a launch spec file; nil for no file.
func ReadLaunch(path string) (*handlers.Launch, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: --launch: %w", handlers.ErrInvalid, err)
	}
	spec, err := launch.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("--launch %s: %w", path, err)
	}
	return &spec, nil
}
