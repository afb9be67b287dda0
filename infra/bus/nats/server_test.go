package nats_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
	"github.com/reprieve-dev/reprieve/infra/bus/bustest"
	"github.com/reprieve-dev/reprieve/infra/bus/nats"
)

// serve runs a NATS server that is not ours.
func serve(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	opts.Host, opts.NoSigs, opts.NoLog = "127.0.0.1", true, true
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server did not start")
	}
	return srv
}

// admin returns what an administrator of the server at url works with.
func admin(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	c, err := client.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	js, err := jetstream.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func publish(t *testing.T, b bus.Bus, id string) {
	t.Helper()
	if err := b.Publish(t.Context(), bustest.Event(t, events.TypeSweepDue, id)); err != nil {
		t.Fatal(err)
	}
}

// wantNext takes messages, acking them, until it has got all ids; others that came before are no error.
func wantNext(t *testing.T, f bus.Feed, ids ...string) []bus.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out []bus.Message
	for len(ids) > 0 {
		m, err := f.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %v: %v", ids, err)
		}
		if err := m.Ack(ctx); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
		ids = slices.DeleteFunc(ids, func(id string) bool { return m.Err == nil && id == m.Event.ID() })
	}
	return out
}

func TestServerWithoutJetStream(t *testing.T) {
	srv := serve(t, &server.Options{})
	_, err := nats.Open(t.Context(), srv.ClientURL(), nats.Options{})
	if !errors.Is(err, handlers.ErrPermanent) || !strings.Contains(err.Error(), "nats-server -js") {
		t.Errorf("got %v, want %v that says how to start it", err, handlers.ErrPermanent)
	}
}

func TestExistingStreams(t *testing.T) {
	tests := []struct {
		name    string
		have    jetstream.StreamConfig
		wantErr string
	}{
		{name: "older settings", have: jetstream.StreamConfig{Name: "REPRIEVE", Subjects: []string{"reprieve.events.dev.>"}, MaxAge: time.Hour, Duplicates: time.Minute, MaxMsgs: 1e6}},
		{name: "another retention", have: jetstream.StreamConfig{Name: "REPRIEVE", Subjects: []string{"reprieve.events.>"}, Retention: jetstream.WorkQueuePolicy}, wantErr: "set up the stream REPRIEVE"},
		{name: "its subjects in another stream", have: jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"reprieve.>"}}, wantErr: "set up the stream REPRIEVE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := serve(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
			js := admin(t, srv.ClientURL())
			if _, err := js.CreateStream(t.Context(), tt.have); err != nil {
				t.Fatal(err)
			}
			b, err := nats.Open(t.Context(), srv.ClientURL(), nats.Options{})
			if tt.wantErr != "" {
				if !errors.Is(err, handlers.ErrPermanent) || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got %v, want %v with %q", err, handlers.ErrPermanent, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			s, err := js.Stream(t.Context(), "REPRIEVE")
			if err != nil {
				t.Fatal(err)
			}
			got := s.CachedInfo().Config
			if got.MaxAge != 7*24*time.Hour || got.Duplicates != 10*time.Minute || !slices.Equal(got.Subjects, []string{"reprieve.events.>"}) {
				t.Errorf("ours were not brought up to date: %+v", got)
			}
			if got, want := got.MaxMsgs, int64(1e6); got != want {
				t.Errorf("the owner's setting: got %d, want %d", got, want)
			}
		})
	}
}

func TestServerRestarts(t *testing.T) {
	t.Parallel()
	opts := &server.Options{JetStream: true, StoreDir: t.TempDir()}
	srv := serve(t, opts)
	opts.Port = srv.Addr().(*net.TCPAddr).Port
	b := open(t, srv.ClientURL(), "", 0)
	durable, err := b.Subscribe(t.Context(), bus.Subscription{Name: "g", Types: []string{bus.Any}})
	if err != nil {
		t.Fatal(err)
	}
	defer durable.Close()
	tail, err := b.Subscribe(t.Context(), bus.Subscription{Types: []string{bus.Any}})
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	publish(t, b, "before")
	wantNext(t, durable, "before")
	wantNext(t, tail, "before")

	srv.Shutdown()
	srv.WaitForShutdown()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.Publish(ctx, bustest.Event(t, events.TypeSweepDue, "while away")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("publish while the server is away: got %v, want %v", err, context.DeadlineExceeded)
	}
	if _, err := tail.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("next while the server is away: got %v, want %v", err, context.DeadlineExceeded)
	}

	serve(t, opts)
	publish(t, b, "while away") // again: its outcome was unknown
	publish(t, b, "after")
	if got := wantNext(t, durable, "while away", "after"); len(got) != 2 {
		t.Errorf("durable: got %d messages, want 2", len(got))
	}
	if got := wantNext(t, tail, "while away", "after"); len(got) != 2 {
		t.Errorf("tail: got %d messages, want 2", len(got))
	}
}

func TestBinaryMode(t *testing.T) {
	b := open(t, "nats+embedded://", t.TempDir(), 0)
	f, err := b.Subscribe(t.Context(), bus.Subscription{Name: "g", Types: []string{events.TypeSweepDue}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	headers := client.Header{"ce-specversion": {"1.0"}, "ce-id": {"binary"}, "ce-type": {events.TypeSweepDue}, "ce-source": {"/x"}, "ce-traceparent": {"t"}, "content-type": {"application/json"}}
	data := `{"at":"2026-01-01T00:00:00Z"}`
	publishRaw(t, b.ClientURL(), events.TypeSweepDue, headers, []byte(data))
	m := wantNext(t, f, "binary")[0]
	if got := string(m.Event.Data()); got != data {
		t.Errorf("data: got %s, want %s", got, data)
	}
	if got, want := m.Event.Extensions()["traceparent"], "t"; got != want {
		t.Errorf("extension: got %v, want %v", got, want)
	}
	if again, err := bus.Decode(m.Raw); err != nil || again.ID() != "binary" {
		t.Errorf("raw: got %s, %v; want the structured form", m.Raw, err)
	}

	delete(headers, "ce-id")
	publishRaw(t, b.ClientURL(), events.TypeSweepDue, headers, []byte(data))
	publish(t, b, "after")
	if m := wantNext(t, f, "after")[0]; !errors.Is(m.Err, handlers.ErrInvalid) || string(m.Raw) != data {
		t.Errorf("without an id: got %v %s, want %v", m.Err, m.Raw, handlers.ErrInvalid)
	}
}

func TestDeletedConsumersComeBack(t *testing.T) {
	t.Parallel()
	b := open(t, "nats+embedded://", t.TempDir(), 0)
	js := admin(t, b.ClientURL())
	durable, err := b.Subscribe(t.Context(), bus.Subscription{Name: "g", Types: []string{bus.Any}, FromStart: true})
	if err != nil {
		t.Fatal(err)
	}
	defer durable.Close()
	tail, err := b.Subscribe(t.Context(), bus.Subscription{Types: []string{bus.Any}})
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	publish(t, b, "1")
	wantNext(t, durable, "1")
	wantNext(t, tail, "1")
	s, err := js.Stream(t.Context(), "REPRIEVE")
	if err != nil {
		t.Fatal(err)
	}
	for name := range s.ConsumerNames(t.Context()).Name() {
		if err := s.DeleteConsumer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, b, "2")
	wantNext(t, durable, "2") // "1" comes again: its position is gone
	if got := wantNext(t, tail, "2"); len(got) != 1 {
		t.Errorf("tail: got %d messages, want 1", len(got))
	}
}

func TestHugeForeignMessageIsDeadLettered(t *testing.T) {
	b := open(t, "nats+embedded://", t.TempDir(), 0)
	raw := []byte(strings.Repeat("x", 1<<20))
	publishRaw(t, b.ClientURL(), events.TypeSweepDue, nil, raw)
	f, err := b.Subscribe(t.Context(), bus.Subscription{Name: "g", Types: []string{bus.Any}, FromStart: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.DeadLetter(t.Context(), m.Raw, strings.Repeat("\x00", 1<<20)); err != nil {
		t.Fatal(err)
	}
	for d, err := range b.DeadLetters(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Raw) < 900<<10 || !strings.HasPrefix(d.Reason, "\x00") {
			t.Errorf("got %d bytes, reason of %d bytes", len(d.Raw), len(d.Reason))
		}
		return
	}
	t.Error("got no dead letter")
}

// BenchmarkLatency measures publish to handler, with one event in flight.
func BenchmarkLatency(b *testing.B) {
	bench, err := nats.Open(b.Context(), "nats+embedded://", nats.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer bench.Close()
	f, err := bench.Subscribe(b.Context(), bus.Subscription{Name: "g", Types: []string{bus.Any}})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	type arrival struct {
		at  time.Time
		err error
	}
	arrived := make(chan arrival, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := f.Next(b.Context())
			now := time.Now()
			if err == nil {
				err = m.Ack(b.Context())
			}
			arrived <- arrival{now, err}
			if err != nil {
				return
			}
		}
	}()
	var took []time.Duration
	prefix := time.Now().Format(time.RFC3339Nano)
	for i := 0; b.Loop(); i++ {
		e := bustest.Event(b, events.TypeSweepDue, prefix+"-"+time.Duration(i).String())
		began := time.Now()
		if err := bench.Publish(b.Context(), e); err != nil {
			b.Fatal(err)
		}
		a := <-arrived
		if a.err != nil {
			b.Fatal(a.err)
		}
		took = append(took, a.at.Sub(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	f.Close()
	<-done
}
