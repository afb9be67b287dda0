package nats_test

import (
	"log/slog"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"

	"github.com/reprieve-dev/reprieve/infra/bus/bustest"
	"github.com/reprieve-dev/reprieve/infra/bus/nats"
)

// open returns a bus on an embedded server in dir.
func open(t *testing.T, url, dir string, ackWait time.Duration) *nats.Bus {
	t.Helper()
	b, err := nats.Open(t.Context(), url, nats.Options{Dir: dir, AckWait: ackWait, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestConformance(t *testing.T) {
	t.Run("within the process", func(t *testing.T) {
		bustest.Run(t, func(t *testing.T, ackWait time.Duration) (bustest.Bus, func(string, []byte)) {
			b := open(t, "nats+embedded://", t.TempDir(), ackWait)
			return b, func(typ string, raw []byte) { publishRaw(t, b.ClientURL(), typ, nil, raw) }
		})
	})
	t.Run("over TCP", func(t *testing.T) {
		bustest.Run(t, func(t *testing.T, ackWait time.Duration) (bustest.Bus, func(string, []byte)) {
			url := open(t, "nats+embedded://", t.TempDir(), 0).ClientURL()
			return open(t, url, "", ackWait), func(typ string, raw []byte) { publishRaw(t, url, typ, nil, raw) }
		})
	})
}

// publishRaw publishes to the subject of typ, as any NATS client could.
func publishRaw(t *testing.T, url, typ string, header client.Header, data []byte) {
	t.Helper()
	c, err := client.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.PublishMsg(&client.Msg{Subject: "reprieve.events." + typ, Header: header, Data: data}); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}
