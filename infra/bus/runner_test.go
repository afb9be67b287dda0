package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
	"github.com/reprieve-dev/reprieve/infra/bus/mem"
)

// due is an event of type typ; its data suits the types whose data is events.Due.
func due(t testing.TB, typ, id string) events.Event {
	t.Helper()
	e, err := events.New(typ, events.Source, "", id, time.Now(), events.Due{At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// faulty is a mem bus whose DeadLetter and Publish can be made to fail.
type faulty struct {
	*mem.Bus
	mu                     sync.Mutex
	deadFails, publishFail []error // one per call, until used up
	published              []string
}

func pop(list *[]error) error {
	if len(*list) == 0 {
		return nil
	}
	err := (*list)[0]
	*list = (*list)[1:]
	return err
}

func (f *faulty) DeadLetter(ctx context.Context, raw []byte, reason string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := pop(&f.deadFails); err != nil {
		return err
	}
	return f.Bus.DeadLetter(ctx, raw, reason)
}

func (f *faulty) Publish(ctx context.Context, evs ...events.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := pop(&f.publishFail); err != nil {
		return err
	}
	for _, e := range evs {
		f.published = append(f.published, e.ID())
	}
	return f.Bus.Publish(ctx, evs...)
}

func reasons(t testing.TB, b *mem.Bus) []string {
	t.Helper()
	var out []string
	for d, err := range b.DeadLetters(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d.Reason)
	}
	return out
}

// TestResultTable has one row for every row of the runner's result table.
func TestResultTable(t *testing.T) {
	boom := errors.New("boom")
	wrap := func(class error) error { return fmt.Errorf("%w: %w", class, boom) }
	forever := 1000
	times := func(n int, err error) []error { return slices.Repeat([]error{err}, n) }

	tests := []struct {
		name        string
		results     []error // of the handler's runs; nil behind the last one
		panics      bool    // the first run
		silent      bool    // the handler returns no event
		publishFail []error
		settleFail  []error
		deadFails   []error

		wantRuns      int
		wantOutcomes  []string
		wantPublished bool
		wantSettled   int
		wantDead      string // a part of the reason; empty: no dead letter
	}{
		{name: "success", wantRuns: 1, wantOutcomes: []string{"handled"}, wantPublished: true, wantSettled: 1},
		{name: "success without events", silent: true, wantRuns: 1, wantOutcomes: []string{"handled"}},
		{name: "ignored", results: times(1, wrap(handlers.ErrIgnored)), wantRuns: 1, wantOutcomes: []string{"ignored"}, wantPublished: true, wantSettled: 1},
		{name: "ignored without events", silent: true, results: times(1, wrap(handlers.ErrIgnored)), wantRuns: 1, wantOutcomes: []string{"ignored"}},
		{name: "conflict once", results: times(1, wrap(handlers.ErrConflict)), wantRuns: 2, wantOutcomes: []string{"handled"}, wantPublished: true, wantSettled: 1},
		{name: "conflict, then obsolete", results: []error{wrap(handlers.ErrConflict), wrap(handlers.ErrIgnored)}, silent: true, wantRuns: 2, wantOutcomes: []string{"ignored"}},
		{name: "conflict too often", results: times(5, wrap(handlers.ErrConflict)), wantRuns: 6, wantOutcomes: []string{"retried", "handled"}, wantPublished: true, wantSettled: 1},
		{name: "invalid", results: times(forever, wrap(handlers.ErrInvalid)), wantRuns: 1, wantOutcomes: []string{"dead-lettered"}, wantDead: "under-test: invalid: boom"},
		{name: "permanent", results: times(forever, wrap(handlers.ErrPermanent)), wantRuns: 1, wantOutcomes: []string{"dead-lettered"}, wantDead: "permanent: boom"},
		{name: "not found", results: times(forever, wrap(handlers.ErrNotFound)), wantRuns: 1, wantOutcomes: []string{"dead-lettered"}, wantDead: "not found: boom"},
		{name: "panic", panics: true, wantRuns: 1, wantOutcomes: []string{"dead-lettered"}, wantDead: "runner_test.go"},
		{name: "unavailable", results: times(3, wrap(handlers.ErrUnavailable)), wantRuns: 4, wantOutcomes: []string{"retried", "retried", "retried", "handled"}, wantPublished: true, wantSettled: 1},
		{name: "no class", results: times(1, boom), wantRuns: 2, wantOutcomes: []string{"retried", "handled"}, wantPublished: true, wantSettled: 1},
		{name: "the handler's own deadline", results: times(1, context.DeadlineExceeded), wantRuns: 2, wantOutcomes: []string{"retried", "handled"}, wantPublished: true, wantSettled: 1},
		{name: "dead-lettering fails", results: times(2, wrap(handlers.ErrInvalid)), deadFails: times(1, boom), wantRuns: 2, wantOutcomes: []string{"retried", "dead-lettered"}, wantDead: "boom"},
		{name: "publishing fails", publishFail: times(1, wrap(handlers.ErrUnavailable)), wantRuns: 2, wantOutcomes: []string{"retried", "handled"}, wantPublished: true, wantSettled: 1},
		{name: "settling fails", settleFail: times(1, wrap(handlers.ErrUnavailable)), wantRuns: 2, wantOutcomes: []string{"retried", "handled"}, wantPublished: true, wantSettled: 2},
		{name: "settling conflicts", settleFail: times(1, wrap(handlers.ErrConflict)), wantRuns: 2, wantOutcomes: []string{"handled"}, wantPublished: true, wantSettled: 2},
		{name: "the event that follows is invalid", publishFail: times(1, wrap(handlers.ErrInvalid)), wantRuns: 1, wantOutcomes: []string{"dead-lettered"}, wantDead: "publish what followed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &faulty{Bus: mem.New(0), deadFails: tt.deadFails}
				in, follows := due(t, events.TypeSweepDue, "in"), due(t, events.TypeWatchDue, "follows")
				if err := b.Publish(t.Context(), in); err != nil {
					t.Fatal(err)
				}
				b.published, b.publishFail = nil, tt.publishFail

				var runs, settled int
				var outcomes []string
				r := &bus.Runner{
					Bus: b, Log: slog.New(slog.DiscardHandler),
					Settle: func(_ context.Context, evs []events.Event) error {
						settled++
						return pop(&tt.settleFail)
					},
					Count: func(_, outcome string) { outcomes = append(outcomes, outcome) },
				}
				stop := start(t, r, "under-test", []string{events.TypeSweepDue}, func(context.Context, events.Event) ([]events.Event, error) {
					runs++
					if tt.panics {
						panic("poison")
					}
					if err := pop(&tt.results); err != nil || tt.silent {
						if tt.silent {
							return nil, err
						}
						return []events.Event{follows}, err
					}
					return []events.Event{follows}, nil
				})
				<-time.After(time.Hour)
				stop()

				if got, want := runs, tt.wantRuns; got != want {
					t.Errorf("runs of the handler: got %d, want %d", got, want)
				}
				if diff := cmp.Diff(outcomes, tt.wantOutcomes); diff != "" {
					t.Errorf("outcomes (-got +want):\n%s", diff)
				}
				if got, want := slices.Contains(b.published, "follows"), tt.wantPublished; got != want {
					t.Errorf("published what followed: got %v, want %v", got, want)
				}
				if got, want := settled, tt.wantSettled; got != want {
					t.Errorf("settled: got %d, want %d", got, want)
				}
				got := reasons(t, b.Bus)
				if want := tt.wantDead; (want == "") != (len(got) == 0) || len(got) > 1 || len(got) == 1 && !strings.Contains(got[0], want) {
					t.Errorf("dead letters: got %q, want one with %q", got, want)
				}
			})
		})
	}
}

// start runs r; the returned function stops it and waits.
func start(t *testing.T, r *bus.Runner, name string, types []string, h bus.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, name, types, h) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: got %v, want nil", err)
		}
	}
}

func quiet(b bus.Bus, count func(handler, outcome string)) *bus.Runner {
	return &bus.Runner{Bus: b, Log: slog.New(slog.DiscardHandler), Count: count,
		Settle: func(context.Context, []events.Event) error { return nil }}
}

func TestMalformedIsDeadLettered(t *testing.T) {
	tests := []struct{ name, typ, raw, want string }{
		{"no JSON", events.TypeSweepDue, "hello", "not a JSON CloudEvent"},
		{"no CloudEvent", events.TypeSweepDue, `{"a":1}`, "CloudEvent"},
		{"no id", events.TypeSweepDue, `{"specversion":"1.0","type":"dev.reprieve.sweep.due","source":"/x"}`, "id: MUST be a non-empty string"},
		{"another version", events.TypeSweepDue, `{"specversion":"0.3","id":"1","type":"dev.reprieve.sweep.due","source":"/x"}`, "send 1.0"},
		{"another type", events.TypeSweepDue, `{"specversion":"1.0","id":"1","type":"dev.reprieve.watch.due","source":"/x","data":{"at":"2026-01-01T00:00:00Z"}}`, "not for this handler"},
		{"unknown type", "dev.unknown", `{"specversion":"1.0","id":"1","type":"dev.unknown","source":"/x","data":{}}`, `unknown type "dev.unknown"`},
		{"wrong data", events.TypeSweepDue, `{"specversion":"1.0","id":"1","type":"dev.reprieve.sweep.due","source":"/x","data":{"at":7}}`, "data of event 1"},
		{"no data", events.TypeSweepDue, `{"specversion":"1.0","id":"1","type":"dev.reprieve.sweep.due","source":"/x"}`, "data of event 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := mem.New(0)
				if err := b.PublishRaw(t.Context(), tt.typ, []byte(tt.raw)); err != nil {
					t.Fatal(err)
				}
				var outcomes []string
				r := quiet(b, func(_, outcome string) { outcomes = append(outcomes, outcome) })
				stop := start(t, r, "h", []string{events.TypeSweepDue, "dev.unknown"}, func(_ context.Context, e events.Event) ([]events.Event, error) {
					t.Errorf("the handler was given %s", e)
					return nil, nil
				})
				synctest.Wait()
				stop()
				if got, want := outcomes, []string{bus.OutcomeDead}; !slices.Equal(got, want) {
					t.Errorf("outcomes: got %v, want %v", got, want)
				}
				if got := reasons(t, b); len(got) != 1 || !strings.Contains(got[0], tt.want) {
					t.Errorf("dead letters: got %q, want one with %q", got, tt.want)
				}
				for d, err := range b.DeadLetters(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					if got, want := string(d.Raw), tt.raw; got != want {
						t.Errorf("raw: got %s, want %s", got, want)
					}
				}
			})
		})
	}
}

func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(30 * time.Second)
		if err := b.Publish(t.Context(), due(t, events.TypeSweepDue, "slow")); err != nil {
			t.Fatal(err)
		}
		runs := 0
		stop := start(t, quiet(b, func(string, string) {}), "h", []string{bus.Any}, func(context.Context, events.Event) ([]events.Event, error) {
			runs++
			<-time.After(10 * time.Minute)
			return nil, nil
		})
		<-time.After(time.Hour)
		stop()
		if got, want := runs, 1; got != want {
			t.Errorf("runs: got %d, want %d", got, want)
		}
	})
}

func TestBackoffGrowsToAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(0)
		if err := b.Publish(t.Context(), due(t, events.TypeSweepDue, "never")); err != nil {
			t.Fatal(err)
		}
		var at []time.Time
		stop := start(t, quiet(b, func(string, string) {}), "h", []string{bus.Any}, func(context.Context, events.Event) ([]events.Event, error) {
			at = append(at, time.Now())
			return nil, handlers.ErrUnavailable
		})
		<-time.After(24 * time.Hour)
		stop()
		var longest time.Duration
		for i := 1; i < len(at); i++ {
			gap := at[i].Sub(at[i-1])
			longest = max(longest, gap)
			if limit := min(time.Minute, 250*time.Millisecond<<min(i-1, 10)); gap > limit+time.Millisecond {
				t.Errorf("wait %d: got %v, want at most %v", i, gap, limit)
			}
		}
		if longest < 50*time.Second {
			t.Errorf("longest wait of %d: got %v, want nearly a minute", len(at), longest)
		}
	})
}

func TestStopWaitsForHandlers(t *testing.T) {
	tests := []struct {
		name        string
		work        time.Duration
		wantOutcome string
		wantTook    time.Duration
	}{
		{"that finish", 3 * time.Second, bus.OutcomeHandled, 3 * time.Second},
		{"that have to be cancelled", time.Hour, bus.OutcomeInterrupted, 5 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := mem.New(0)
				if err := b.Publish(t.Context(), due(t, events.TypeSweepDue, "1")); err != nil {
					t.Fatal(err)
				}
				var outcomes []string
				stop := start(t, quiet(b, func(_, outcome string) { outcomes = append(outcomes, outcome) }), "h", []string{bus.Any},
					func(ctx context.Context, _ events.Event) ([]events.Event, error) {
						select {
						case <-time.After(tt.work):
							return nil, nil
						case <-ctx.Done():
							return nil, ctx.Err()
						}
					})
				synctest.Wait()
				began := time.Now()
				stop()
				if got, want := time.Since(began), tt.wantTook; got != want {
					t.Errorf("stopping took %v, want %v", got, want)
				}
				if got, want := outcomes, []string{tt.wantOutcome}; !slices.Equal(got, want) {
					t.Errorf("outcomes: got %v, want %v", got, want)
				}
				if len(reasons(t, b)) != 0 {
					t.Errorf("dead letters: got %q, want none", reasons(t, b))
				}
			})
		})
	}
}

func TestPoisonDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := mem.New(0)
		for i := range 100 {
			if err := b.Publish(t.Context(), due(t, events.TypeSweepDue, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		counts := map[string]int{}
		var now, most int
		stop := start(t, quiet(b, func(_, outcome string) {
			mu.Lock()
			defer mu.Unlock()
			counts[outcome]++
		}), "h", []string{bus.Any}, func(_ context.Context, e events.Event) ([]events.Event, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-time.After(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			if e.ID() == "7" {
				panic("poison")
			}
			return nil, nil
		})
		<-time.After(time.Minute)
		stop()
		if got, want := counts, map[string]int{"handled": 99, "dead-lettered": 1}; !cmp.Equal(got, want) {
			t.Errorf("outcomes: got %v, want %v", got, want)
		}
		if got, want := most, 16; got != want {
			t.Errorf("in flight at most: got %d, want %d", got, want)
		}
	})
}

// TestNothingIsLost: whatever handlers, dead-lettering, publishing and stops of the runner do,
// every event ends as handled, ignored or dead-lettered.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 0))
				var mu sync.Mutex
				chance := func(p float64) bool {
					mu.Lock()
					defer mu.Unlock()
					return rnd.Float64() < p
				}
				b := &unreliable{Bus: mem.New(0), fails: func() bool { return chance(0.3) }}
				const n = 200
				var want []string
				for i := range n {
					id := fmt.Sprint("event-", i)
					want = append(want, id)
					if err := b.Bus.Publish(t.Context(), due(t, events.TypeSweepDue, id)); err != nil {
						t.Fatal(err)
					}
				}
				ended := map[string]bool{}
				classes := []error{handlers.ErrConflict, handlers.ErrUnavailable, handlers.ErrUnavailable, context.Canceled, errors.New("other"), handlers.ErrInvalid, handlers.ErrPermanent, handlers.ErrNotFound}
				handle := func(ctx context.Context, e events.Event) ([]events.Event, error) {
					select {
					case <-time.After(time.Second):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					follows := []events.Event{due(t, events.TypeWatchDue, "after-"+e.ID())}
					switch {
					case chance(0.05):
						panic("poison")
					case chance(0.3):
						mu.Lock()
						defer mu.Unlock()
						return follows, classes[rnd.IntN(len(classes))]
					case chance(0.3):
						mu.Lock()
						defer mu.Unlock()
						ended[e.ID()] = true
						return nil, handlers.ErrIgnored
					}
					return follows, nil
				}
				r := quiet(b, func(string, string) {})
				for range 5 {
					stop := start(t, r, "h", []string{events.TypeSweepDue}, handle)
					<-time.After(3 * time.Second)
					stop()
				}
				stop := start(t, r, "h", []string{events.TypeSweepDue}, handle)
				<-time.After(24 * time.Hour)
				stop()

				for d, err := range b.DeadLetters(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					e, err := bus.Decode(d.Raw)
					if err != nil {
						t.Fatal(err)
					}
					ended[e.ID()] = true
				}
				for _, id := range b.published {
					ended[strings.TrimPrefix(id, "after-")] = true
				}
				for _, id := range want {
					if !ended[id] {
						t.Errorf("%s was lost", id)
					}
				}
			})
		})
	}
}

// unreliable is a mem bus that fails by chance.
type unreliable struct {
	*mem.Bus
	fails     func() bool
	mu        sync.Mutex
	published []string
}

func (u *unreliable) DeadLetter(ctx context.Context, raw []byte, reason string) error {
	if u.fails() {
		return handlers.ErrUnavailable
	}
	return u.Bus.DeadLetter(ctx, raw, reason)
}

func (u *unreliable) Publish(ctx context.Context, evs ...events.Event) error {
	if u.fails() {
		return handlers.ErrUnavailable
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range evs {
		u.published = append(u.published, e.ID())
	}
	return u.Bus.Publish(ctx, evs...)
}

func (u *unreliable) Subscribe(ctx context.Context, sub bus.Subscription) (bus.Feed, error) {
	if u.fails() {
		return nil, handlers.ErrUnavailable
	}
	return u.Bus.Subscribe(ctx, sub)
}

func TestRunRefuses(t *testing.T) {
	tests := []struct {
		name, group string
		types       []string
	}{
		{"no name", "", []string{bus.Any}},
		{"a name with a dot", "a.b", []string{bus.Any}},
		{"no types", "h", nil},
		{"a type with a wildcard", "h", []string{"dev.>"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := quiet(mem.New(0), nil).Run(t.Context(), tt.group, tt.types, nil)
			if got, want := handlers.Class(err), handlers.ErrInvalid; got != want {
				t.Errorf("got %v, want %v", err, want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","type":"dev.reprieve.sweep.due","source":"/x","data":{"at":"2026-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","type":"a","source":"/x","data_base64":"AA==","ext":1}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","type":"e","source":"/x","data":{"&0":"0"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := bus.Decode(raw)
		if err != nil {
			if got, want := handlers.Class(err), handlers.ErrInvalid; got != want {
				t.Fatalf("got %v, want class %v", err, want)
			}
			return
		}
		again, err := bus.Encode(e)
		if err != nil {
			if len(raw) > 100<<10 { // near the limit of Encode
				return
			}
			t.Fatalf("encode what was decoded: %v", err)
		}
		twice, err := bus.Decode(again)
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		if twice.ID() != e.ID() || twice.Type() != e.Type() || !sameData(twice, e) {
			t.Errorf("got %v, want %v", twice, e)
		}
	})
}

// sameData compares JSON by meaning: encoding escapes what HTML would take amiss.
func sameData(a, b events.Event) bool {
	var x, y any
	if json.Unmarshal(a.Data(), &x) != nil || json.Unmarshal(b.Data(), &y) != nil {
		return string(a.Data()) == string(b.Data())
	}
	return reflect.DeepEqual(x, y)
}
