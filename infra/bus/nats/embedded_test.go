package nats_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
	"github.com/reprieve-dev/reprieve/infra/bus/bustest"
	"github.com/reprieve-dev/reprieve/infra/bus/nats"
)

// helperDir makes this test binary a process that publishes to an embedded server in that
// directory, one event after the other, and prints each id that was accepted.
const helperDir = "REPRIEVE_TEST_NATS_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		if err := publishForEver(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func publishForEver(dir string) error {
	ctx := context.Background()
	b, err := nats.Open(ctx, "nats+embedded://?listen=none", nats.Options{Dir: dir})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		e, err := events.New(events.TypeSweepDue, events.Source, "", fmt.Sprintf("%d-%d", os.Getpid(), i), time.Now(), events.Due{At: time.Now()})
		if err != nil {
			return err
		}
		if err := b.Publish(ctx, e); err != nil {
			return err
		}
		fmt.Println(e.ID())
	}
}

func TestKilledServerKeepsEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var accepted []string
	for round := range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperDir+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			accepted = append(accepted, lines.Text())
			if n == 200 {
				if round == 0 {
					refused(t, dir)
				}
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the helper was not killed")
		}
	}
	b := open(t, "nats+embedded://?listen=none", dir, 0)
	f, err := b.Subscribe(t.Context(), bus.Subscription{Name: "g", Types: []string{bus.Any}, FromStart: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	found := map[string]bool{}
	for missing := accepted; len(missing) > 0; {
		m, err := f.Next(ctx)
		if err != nil {
			t.Fatalf("%d of %d accepted events are lost, such as %s: %v", len(missing), len(accepted), missing[0], err)
		}
		if m.Err != nil {
			t.Errorf("a broken message: %v", m.Err)
		}
		if found[m.Event.ID()] {
			t.Errorf("%s came twice", m.Event.ID())
		}
		found[m.Event.ID()] = true
		if err := m.Ack(ctx); err != nil {
			t.Fatal(err)
		}
		missing = slices.DeleteFunc(missing, func(id string) bool { return id == m.Event.ID() })
	}
}

// refused checks that the directory of a running server belongs to it.
func refused(t *testing.T, dir string) {
	t.Helper()
	_, err := nats.Open(t.Context(), "nats+embedded://", nats.Options{Dir: dir})
	if !errors.Is(err, handlers.ErrUnavailable) || !strings.Contains(err.Error(), dir+" belongs to the embedded NATS server of another process") {
		t.Errorf("second server in %s: got %v", dir, err)
	}
}

func TestOneServerPerDirectory(t *testing.T) {
	dir := t.TempDir()
	b := open(t, "nats+embedded://?dir="+dir, "", 0)
	refused(t, dir)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, "nats+embedded://?dir="+dir, "", 0)
}

func TestOpenRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, url string
		noDir     bool
		class     error
		want      string
	}{
		{"another scheme", "kafka://host", false, handlers.ErrInvalid, "use nats://host:4222"},
		{"no host", "nats://", false, handlers.ErrInvalid, "use nats://host:4222"},
		{"empty", "", false, handlers.ErrInvalid, "use nats://host:4222"},
		{"one bad host of two", "nats://a:4222,b:4222", false, handlers.ErrInvalid, "use nats://host:4222"},
		{"nobody there", "nats://user:secret@127.0.0.1:1", false, handlers.ErrUnavailable, "is the server running there?"},
		{"no directory", "nats+embedded://", true, handlers.ErrInvalid, "add ?dir=DIR"},
		{"directory as path", "nats+embedded:///var/lib/x", false, handlers.ErrInvalid, "?dir=DIR"},
		{"directory that is a file", "nats+embedded://?dir=" + file, false, handlers.ErrInvalid, file},
		{"unknown parameter", "nats+embedded://?port=1", false, handlers.ErrInvalid, `not "port"`},
		{"address without port", "nats+embedded://?listen=127.0.0.1", false, handlers.ErrInvalid, "use host:port"},
		{"open to all", "nats+embedded://?listen=0.0.0.0:0", false, handlers.ErrInvalid, "add a password"},
		{"user without password", "nats+embedded://me@?listen=0.0.0.0:0", false, handlers.ErrInvalid, "both a user and a password"},
		{"port in use", "nats+embedded://?listen=" + taken.Addr().String(), false, handlers.ErrUnavailable, "address already in use"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			opts := nats.Options{Dir: t.TempDir()}
			if tt.noDir {
				opts.Dir = ""
			}
			_, err := nats.Open(t.Context(), tt.url, opts)
			if handlers.Class(err) != tt.class || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v, want %v with %q", err, tt.class, tt.want)
			}
			if strings.Contains(fmt.Sprint(err), "secret") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func TestListening(t *testing.T) {
	t.Run("to nobody", func(t *testing.T) {
		if got := open(t, "nats+embedded://?listen=none", t.TempDir(), 0).ClientURL(); got != "" {
			t.Errorf("client URL: got %q, want none", got)
		}
	})
	t.Run("with a password", func(t *testing.T) {
		b := open(t, "nats+embedded://me:secret@?listen=0.0.0.0:0", t.TempDir(), 0)
		_, port, err := net.SplitHostPort(strings.TrimPrefix(b.ClientURL(), "nats://"))
		if err != nil {
			t.Fatalf("client URL %q: %v", b.ClientURL(), err)
		}
		if _, err := nats.Open(t.Context(), "nats://127.0.0.1:"+port, nats.Options{}); !errors.Is(err, handlers.ErrUnavailable) {
			t.Errorf("without the password: got %v, want %v", err, handlers.ErrUnavailable)
		}
		other := open(t, "nats://me:secret@127.0.0.1:"+port, "", 0)
		if err := other.Publish(t.Context(), bustest.Event(t, events.TypeSweepDue, "1")); err != nil {
			t.Error(err)
		}
	})
}
