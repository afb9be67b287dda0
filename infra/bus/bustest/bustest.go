// Package bustest is the one suite that every bus has to pass. It tests what the port promises,
// with real time kept short; what the runner makes of it is tested once, in infra/bus.
package bustest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
)

// Bus is a bus under test.
type Bus interface {
	bus.Bus
	DeadLetters(ctx context.Context) iter.Seq2[bus.Dead, error]
}

// Open returns an empty bus with the given ack wait, which is closed at the end of the test, and
// a way past its codec: publishRaw sends bytes to the subscribers of typ, as a foreign program could.
type Open func(t *testing.T, ackWait time.Duration) (b Bus, publishRaw func(typ string, raw []byte))

const (
	patience = 20 * time.Second       // for what must come
	silence  = 150 * time.Millisecond // for what must not
	longWait = 30 * time.Second       // an ack wait that does not end within a test
)

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, tt := range []struct {
		name    string
		ackWait time.Duration
		test    func(*testing.T, Bus)
	}{
		{"a group gets what is published", longWait, testPublish},
		{"only the types asked for", longWait, testTypes},
		{"the same id is one event", longWait, testDedup},
		{"a group shares the work", longWait, testShare},
		{"two groups both get all", longWait, testTwoGroups},
		{"nak delays the next delivery", longWait, testNak},
		{"an unsettled message comes again", 300 * time.Millisecond, testAckWait},
		{"extend keeps a message", 600 * time.Millisecond, testExtend},
		{"what is closed away comes to others", longWait, testClosedFeed},
		{"a tail begins now", longWait, testTail},
		{"a tail from the start", longWait, testTailFromStart},
		{"a new group from now or from the start", longWait, testFromStart},
		{"a subscriber that comes back goes on", longWait, testComesBack},
		{"dead letters hold bytes and reason", longWait, testDeadLetter},
		{"one subscriber works off a backlog without pauses", longWait, testBacklog},
		{"2000 events, none lost", 2 * time.Second, testMany},
		{"invalid events and subscriptions", longWait, testInvalid},
		{"ended contexts", longWait, testContext},
		{"closed buses", longWait, testClosed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, _ := open(t, tt.ackWait)
			tt.test(t, b)
		})
	}
	t.Run("malformed messages are delivered as such", func(t *testing.T) {
		t.Parallel()
		b, publishRaw := open(t, longWait)
		testMalformed(t, b, publishRaw)
	})
}

// Event returns an event of type typ whose data suits the types with events.Due.
func Event(t testing.TB, typ, id string) events.Event {
	t.Helper()
	e, err := events.New(typ, events.Source, "subject", id, time.Now(), events.Due{At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func publish(t *testing.T, b bus.Bus, typ string, ids ...string) {
	t.Helper()
	var evs []events.Event
	for _, id := range ids {
		evs = append(evs, Event(t, typ, id))
	}
	if err := b.Publish(t.Context(), evs...); err != nil {
		t.Fatalf("publish %v: %v", ids, err)
	}
}

func subscribe(t *testing.T, b bus.Bus, sub bus.Subscription) bus.Feed {
	t.Helper()
	if sub.Types == nil {
		sub.Types = []string{bus.Any}
	}
	f, err := b.Subscribe(t.Context(), sub)
	if err != nil {
		t.Fatalf("subscribe %+v: %v", sub, err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// next returns the next message within wait.
func next(t *testing.T, f bus.Feed, wait time.Duration) (bus.Message, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	m, err := f.Next(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("next: %v", err)
	}
	return m, err == nil
}

func ack(t *testing.T, m bus.Message) {
	t.Helper()
	if err := m.Ack(t.Context()); err != nil {
		t.Fatalf("ack: %v", err)
	}
}

// wantNext takes the messages with the given ids, in any order, and acks them.
func wantNext(t *testing.T, f bus.Feed, ids ...string) {
	t.Helper()
	var got []string
	for range ids {
		m, ok := next(t, f, patience)
		if !ok {
			break
		}
		got = append(got, m.Event.ID())
		ack(t, m)
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(ids)); !slices.Equal(got, want) {
		t.Fatalf("messages: got %v, want %v", got, want)
	}
}

func wantNothing(t *testing.T, f bus.Feed) {
	t.Helper()
	if m, ok := next(t, f, silence); ok {
		t.Fatalf("got %s (delivery %d), want nothing", m.Event.ID(), m.Deliveries)
	}
}

func testPublish(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	e := events.WithTrace(Event(t, events.TypeSweepDue, "1"), events.Trace{})
	if err := b.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	m, ok := next(t, f, patience)
	if !ok {
		t.Fatal("got nothing")
	}
	if m.Err != nil {
		t.Fatal(m.Err)
	}
	if got, want := m.Event.String(), e.String(); got != want {
		t.Errorf("event: got %s, want %s", got, want)
	}
	if got, want := events.TraceOf(m.Event), events.TraceOf(e); got != want {
		t.Errorf("trace: got %v, want %v", got, want)
	}
	if got, want := m.Deliveries, 1; got != want {
		t.Errorf("deliveries: got %d, want %d", got, want)
	}
	if got, want := m.AckWait, longWait; got != want {
		t.Errorf("ack wait: got %v, want %v", got, want)
	}
	if again, err := bus.Decode(m.Raw); err != nil || again.ID() != "1" {
		t.Errorf("raw %s: got %v, %v", m.Raw, again, err)
	}
	ack(t, m)
	if err := b.Publish(t.Context()); err != nil {
		t.Errorf("publish nothing: %v", err)
	}
	wantNothing(t, f)
}

func testTypes(t *testing.T, b Bus) {
	one := subscribe(t, b, bus.Subscription{Name: "one", Types: []string{events.TypeSweepDue}})
	two := subscribe(t, b, bus.Subscription{Name: "two", Types: []string{events.TypeSweepDue, events.TypeWatchDue, events.TypeWatchDue}})
	publish(t, b, events.TypeReportDue, "report")
	publish(t, b, events.TypeWatchDue, "watch")
	publish(t, b, events.TypeSweepDue, "sweep")
	wantNext(t, one, "sweep")
	wantNext(t, two, "watch", "sweep")
	wantNothing(t, one)
	wantNothing(t, two)
}

func testDedup(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	publish(t, b, events.TypeSweepDue, "1", "1", "2")
	publish(t, b, events.TypeWatchDue, "2", "3")
	wantNext(t, f, "1", "2", "3")
	wantNothing(t, f)
}

func testShare(t *testing.T, b Bus) {
	a := subscribe(t, b, bus.Subscription{Name: "g"})
	c := subscribe(t, b, bus.Subscription{Name: "g"})
	const n = 50
	for i := range n {
		publish(t, b, events.TypeSweepDue, fmt.Sprint(i))
	}
	seen := map[string]int{}
	for i := range n {
		m, ok := next(t, []bus.Feed{a, c}[i%2], patience)
		if !ok {
			t.Fatalf("nothing after %d messages", i)
		}
		seen[m.Event.ID()]++
		ack(t, m)
	}
	if got, want := len(seen), n; got != want {
		t.Errorf("different messages: got %d, want %d", got, want)
	}
	wantNothing(t, a)
	wantNothing(t, c)
}

func testTwoGroups(t *testing.T, b Bus) {
	a := subscribe(t, b, bus.Subscription{Name: "a"})
	c := subscribe(t, b, bus.Subscription{Name: "b"})
	publish(t, b, events.TypeSweepDue, "1", "2")
	wantNext(t, a, "1", "2")
	wantNext(t, c, "1", "2")
}

func testNak(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	publish(t, b, events.TypeSweepDue, "1")
	m, ok := next(t, f, patience)
	if !ok {
		t.Fatal("got nothing")
	}
	const delay = 400 * time.Millisecond
	began := time.Now()
	if err := m.Nak(t.Context(), delay); err != nil {
		t.Fatal(err)
	}
	publish(t, b, events.TypeSweepDue, "2")
	wantNext(t, f, "2") // others do not wait for it
	m, ok = next(t, f, patience)
	if !ok {
		t.Fatal("got no second delivery")
	}
	if got, want := m.Event.ID(), "1"; got != want {
		t.Errorf("second delivery: got %s, want %s", got, want)
	}
	if took := time.Since(began); took < delay*9/10 || took > delay+5*time.Second {
		t.Errorf("second delivery after %v, want %v", took, delay)
	}
	if got, want := m.Deliveries, 2; got != want {
		t.Errorf("deliveries: got %d, want %d", got, want)
	}
	ack(t, m)
	wantNothing(t, f)
}

func testAckWait(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	publish(t, b, events.TypeSweepDue, "1")
	if _, ok := next(t, f, patience); !ok {
		t.Fatal("got nothing")
	}
	m, ok := next(t, f, patience)
	if !ok {
		t.Fatal("got no second delivery")
	}
	if got, want := m.Deliveries, 2; got != want {
		t.Errorf("deliveries: got %d, want %d", got, want)
	}
	ack(t, m)
	if m, ok := next(t, f, 600*time.Millisecond); ok {
		t.Errorf("got delivery %d after the ack", m.Deliveries)
	}
}

func testExtend(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	publish(t, b, events.TypeSweepDue, "1")
	m, ok := next(t, f, patience)
	if !ok {
		t.Fatal("got nothing")
	}
	for range 6 { // 6 * 150 ms is beyond the ack wait
		wantNothing(t, f)
		if err := m.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ack(t, m)
	wantNothing(t, f)
}

func testClosedFeed(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	wantNothing(t, f) // leaves a waiting request behind
	publish(t, b, events.TypeSweepDue, "1")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close twice: %v", err)
	}
	if _, err := f.Next(t.Context()); !errors.Is(err, handlers.ErrUnavailable) {
		t.Errorf("next of a closed feed: got %v, want %v", err, handlers.ErrUnavailable)
	}
	wantNext(t, subscribe(t, b, bus.Subscription{Name: "g"}), "1")
}

func testTail(t *testing.T, b Bus) {
	publish(t, b, events.TypeSweepDue, "before")
	a := subscribe(t, b, bus.Subscription{Types: []string{events.TypeSweepDue}})
	c := subscribe(t, b, bus.Subscription{})
	publish(t, b, events.TypeWatchDue, "watch")
	publish(t, b, events.TypeSweepDue, "1", "2")
	wantNext(t, a, "1", "2")
	m, ok := next(t, c, patience)
	if !ok {
		t.Fatal("got nothing")
	}
	if got, want := m.AckWait, time.Duration(0); got != want {
		t.Errorf("ack wait: got %v, want %v", got, want)
	}
	if err := errors.Join(m.Nak(t.Context(), 0), m.Extend(t.Context())); err != nil {
		t.Errorf("nak: %v", err)
	}
	wantNext(t, c, "1", "2")
	wantNothing(t, a)
	wantNothing(t, c)
}

func testTailFromStart(t *testing.T, b Bus) {
	publish(t, b, events.TypeSweepDue, "before")
	f := subscribe(t, b, bus.Subscription{FromStart: true})
	publish(t, b, events.TypeSweepDue, "after")
	wantNext(t, f, "before", "after")
	wantNothing(t, f)
}

func testFromStart(t *testing.T, b Bus) {
	publish(t, b, events.TypeSweepDue, "before")
	now := subscribe(t, b, bus.Subscription{Name: "now"})
	start := subscribe(t, b, bus.Subscription{Name: "start", FromStart: true})
	publish(t, b, events.TypeSweepDue, "after")
	wantNext(t, now, "after")
	wantNext(t, start, "before", "after")
	wantNothing(t, now)
	// The group exists: how it began does not matter any more.
	wantNothing(t, subscribe(t, b, bus.Subscription{Name: "now", FromStart: true}))
}

func testComesBack(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	publish(t, b, events.TypeSweepDue, "1", "2")
	wantNext(t, f, "1")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	publish(t, b, events.TypeSweepDue, "3")
	f = subscribe(t, b, bus.Subscription{Name: "g", Types: []string{events.TypeSweepDue, events.TypeWatchDue}})
	publish(t, b, events.TypeWatchDue, "4")
	wantNext(t, f, "2", "3", "4")
	wantNothing(t, f)
}

func testDeadLetter(t *testing.T, b Bus) {
	e := Event(t, events.TypeSweepDue, "1")
	raw, err := bus.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	want := []bus.Dead{
		{Raw: raw, Reason: "permanent: panic: \"x\"\n\tgoroutine 1\r\nmore", Type: events.TypeSweepDue},
		{Raw: []byte("no \x00\xff event"), Reason: "not a CloudEvent"},
		{Raw: []byte{}, Reason: "empty"},
	}
	for _, d := range want {
		if err := b.DeadLetter(t.Context(), d.Raw, d.Reason); err != nil {
			t.Fatal(err)
		}
	}
	var got []bus.Dead
	for d, err := range b.DeadLetters(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if age := time.Since(d.At); age < -time.Minute || age > time.Minute {
			t.Errorf("at: got %v, want now", d.At)
		}
		got = append(got, d)
	}
	if len(got) != len(want) {
		t.Fatalf("dead letters: got %d, want %d", len(got), len(want))
	}
	for i := range want {
		if string(got[i].Raw) != string(want[i].Raw) || got[i].Reason != want[i].Reason || got[i].Type != want[i].Type {
			t.Errorf("dead letter %d: got %q %q %q, want %q %q %q", i, got[i].Raw, got[i].Reason, got[i].Type, want[i].Raw, want[i].Reason, want[i].Type)
		}
	}
	wantNothing(t, subscribe(t, b, bus.Subscription{FromStart: true})) // they are no events
}

func testMalformed(t *testing.T, b Bus, publishRaw func(string, []byte)) {
	f := subscribe(t, b, bus.Subscription{Name: "g", Types: []string{events.TypeSweepDue}})
	for _, raw := range []string{"", "hello", "{}", `{"specversion":"1.0","data_base64":0}`} {
		publishRaw(events.TypeSweepDue, []byte(raw))
		m, ok := next(t, f, patience)
		if !ok {
			t.Fatalf("got nothing for %q", raw)
		}
		if got, want := string(m.Raw), raw; got != want {
			t.Errorf("raw: got %q, want %q", got, want)
		}
		if !errors.Is(m.Err, handlers.ErrInvalid) {
			t.Errorf("%q: got %v, want %v", raw, m.Err, handlers.ErrInvalid)
		}
		ack(t, m)
	}
	wantNothing(t, f)
}

func testBacklog(t *testing.T, b Bus) {
	const n = 1000
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
	}
	publish(t, b, events.TypeSweepDue, ids...)
	f := subscribe(t, b, bus.Subscription{Name: "g", FromStart: true})
	began := time.Now()
	wantNext(t, f, ids...)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d messages took %v", n, took)
	}
}

func testMany(t *testing.T, b Bus) {
	const n, subscribers = 2000, 4
	want := map[string]bool{}
	var evs []events.Event
	for i := range n {
		e := Event(t, events.TypeSweepDue, fmt.Sprint(i))
		want[e.ID()] = true
		evs = append(evs, e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	got := map[string]bool{}
	var wg sync.WaitGroup
	for range subscribers {
		f := subscribe(t, b, bus.Subscription{Name: "g"})
		wg.Go(func() {
			for i := 0; ; i++ {
				m, err := f.Next(ctx)
				if err != nil {
					return
				}
				if m.Deliveries == 1 && i%10 == 0 { // some fail at first, some are forgotten
					if i%20 == 0 {
						_ = m.Nak(ctx, 10*time.Millisecond)
					}
					continue
				}
				mu.Lock()
				got[m.Event.ID()] = true
				if len(got) == n {
					cancel()
				}
				mu.Unlock()
				_ = m.Ack(ctx)
			}
		})
	}
	for chunk := range slices.Chunk(evs, 100) {
		wg.Go(func() {
			if err := b.Publish(t.Context(), chunk...); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !maps.Equal(got, want) {
		t.Errorf("got %d of %d events", len(got), n)
	}
}

func testInvalid(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	good := Event(t, events.TypeSweepDue, "good")
	for name, change := range map[string]func(*events.Event){
		"no id":              func(e *events.Event) { e.SetID("") },
		"an id of two lines": func(e *events.Event) { e.SetID("a\r\nb") },
		"a wildcard type":    func(e *events.Event) { e.SetType("dev.>") },
		"a type with spaces": func(e *events.Event) { e.SetType("dev reprieve") },
		"another version":    func(e *events.Event) { e.SetSpecVersion("0.3") },
		"too much data":      func(e *events.Event) { _ = e.SetData("application/json", make([]byte, 600<<10)) },
	} {
		e := good.Clone()
		change(&e)
		if err := b.Publish(t.Context(), e); !errors.Is(err, handlers.ErrInvalid) {
			t.Errorf("%s: got %v, want %v", name, err, handlers.ErrInvalid)
		}
	}
	for name, sub := range map[string]bus.Subscription{
		"no types":  {Name: "g"},
		"bad name":  {Name: "a b", Types: []string{bus.Any}},
		"bad type":  {Name: "g", Types: []string{"a..b"}},
		"long name": {Name: string(make([]byte, 100)), Types: []string{bus.Any}},
	} {
		if _, err := b.Subscribe(t.Context(), sub); !errors.Is(err, handlers.ErrInvalid) {
			t.Errorf("subscription with %s: got %v, want %v", name, err, handlers.ErrInvalid)
		}
	}
	wantNothing(t, f)
}

func testContext(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, nextErr := f.Next(ctx)
	_, subErr := b.Subscribe(ctx, bus.Subscription{Types: []string{bus.Any}})
	for name, err := range map[string]error{
		"publish":     b.Publish(ctx, Event(t, events.TypeSweepDue, "1")),
		"subscribe":   subErr,
		"next":        nextErr,
		"dead-letter": b.DeadLetter(ctx, nil, "r"),
	} {
		if !errors.Is(err, cause) {
			t.Errorf("%s: got %v, want %v", name, err, cause)
		}
	}
}

func testClosed(t *testing.T, b Bus) {
	f := subscribe(t, b, bus.Subscription{Name: "g"})
	var wg sync.WaitGroup
	var nextErr error
	wg.Go(func() { _, nextErr = f.Next(t.Context()) })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := b.Close(); err != nil {
		t.Errorf("close twice: %v", err)
	}
	_, subErr := b.Subscribe(t.Context(), bus.Subscription{Types: []string{bus.Any}})
	for name, err := range map[string]error{
		"a waiting next": nextErr,
		"publish":        b.Publish(t.Context(), Event(t, events.TypeSweepDue, "1")),
		"subscribe":      subErr,
		"dead-letter":    b.DeadLetter(t.Context(), nil, "r"),
	} {
		if !errors.Is(err, handlers.ErrUnavailable) {
			t.Errorf("%s: got %v, want %v", name, err, handlers.ErrUnavailable)
		}
	}
}
