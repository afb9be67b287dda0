//go:build integration

package integration

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/infra/metadata"
	"github.com/reprieve-dev/reprieve/test/harness"
)

// ec2Mock starts Amazon's mock of the metadata service, tokens required, and returns its URL.
// Its notices appear a second after it started.
func ec2Mock(t *testing.T, args ...string) string {
	t.Helper()
	binary := os.Getenv("EC2_METADATA_MOCK")
	if binary == "" {
		binary = "../../bin/tools/ec2-metadata-mock"
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("there is no ec2-metadata-mock: run make tools, or name it in EC2_METADATA_MOCK: %v", err)
	}
	address := net.JoinHostPort("127.0.0.1", freePort(t))
	_, port, _ := net.SplitHostPort(address)
	mock := harness.Start(t, nil, append([]string{binary}, append(args, "--hostname", "127.0.0.1", "--port", port, "-d", "1", "--imdsv2")...)...)
	harness.Until(t, "the metadata mock", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil || mock.Done()
	})
	return "http://" + address
}

// What Amazon's own mock says is heard, and said once however often it is read.
func TestPollerReadsAmazonsMock(t *testing.T) {
	for name, c := range map[string]struct {
		args     []string
		kind     events.Kind
		deadline bool
	}{
		"terminate": {[]string{"spot", "--action", "terminate"}, events.KindPreempt, true},
		"stop":      {[]string{"spot", "--action", "stop"}, events.KindStop, true},
		"hibernate": {[]string{"spot", "--action", "hibernate"}, events.KindHibernate, true},
		"rebalance": {[]string{"spot", "--rebalance-delay-sec", "1"}, events.KindRebalance, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := ec2Mock(t, c.args...)
			poller := &metadata.AWS{Endpoint: url, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
			node, err := poller.Detect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := node.Provider, "aws"; got != want {
				t.Errorf("provider: got %s, want %s", got, want)
			}
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
			defer cancel()
			var heard []events.Notice
			poller.Run(ctx, 20*time.Millisecond, func(n events.Notice) {
				heard = append(heard, n)
				if n.Kind == c.kind { // a copy would come with one of the next 50 polls
					time.AfterFunc(time.Second, cancel)
				}
			})
			var got []events.Notice
			for _, n := range heard {
				if n.Cancelled {
					t.Errorf("got a withdrawal of what stands: %+v", n)
				}
				if n.Kind == c.kind {
					got = append(got, n)
				}
			}
			if len(got) != 1 {
				t.Fatalf("got %d notices of kind %s, want 1: %+v", len(got), c.kind, heard)
			}
			if got, want := got[0].Node(), node; got != want {
				t.Errorf("node: got %v, want %v", got, want)
			}
			if d := got[0].Deadline; (d != nil) != c.deadline {
				t.Errorf("deadline: got %v, want one: %t", d, c.deadline)
			} else if d != nil && time.Until(*d).Abs() > 3*time.Minute {
				t.Errorf("deadline: got %s, want one within minutes", d)
			}
		})
	}
}
