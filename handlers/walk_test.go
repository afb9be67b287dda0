package handlers_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// walker takes a job through any sequence of transitions, with claims of many processes, and
// checks after each what must hold always.
type walker struct {
	job     handlers.Job
	now     time.Time
	claims  int
	holders map[int]string  // of an attempt, once it was claimed
	events  map[string]bool // ids seen
	edges   map[[2]handlers.State]int
}

func newWalker(restarter handlers.Restarter, b handlers.Budget) *walker {
	launch := spec()
	launch.Budget = b
	return &walker{job: handlers.NewJob("j", "uid", restarter, launch, t0), now: t0, holders: map[int]string{}, events: map[string]bool{}, edges: map[[2]handlers.State]int{}}
}

// who is the id of a process: the newest, or an older one.
func (w *walker) who(b byte) string { return fmt.Sprint("p", max(0, w.claims-int(b)%3)) }

func (w *walker) node(b byte) events.Node {
	return events.Node{Provider: "aws", Instance: fmt.Sprint("i-", b%3)}
}

// step applies the transition that op chooses; arg chooses among its arguments.
func (w *walker) step(op, arg byte) (handlers.Job, error) {
	j := w.job
	switch op % 16 {
	case 0:
		w.claims++
		return j.Claim(j.Attempt-int(arg%2), claimOn(w.who(0), w.node(arg)), w.now)
	case 1:
		w.claims++
		return j.StartInPlace(claimOn(w.who(0), w.node(arg)), arg%2 == 0, w.now)
	case 2:
		return j.LoseLease(w.now)
	case 3:
		return j.Interrupt(w.who(arg), handlers.CauseSigterm, "", w.now)
	case 4:
		return j.End(w.who(arg), int(arg%3), "", w.now)
	case 5:
		return j.Reserve(w.now)
	case 6:
		return j.PassOver(j.Attempt-int(arg%2), w.now)
	case 7:
		if arg%8 == 0 {
			return j.Cancel("", w.now)
		}
	case 8:
		if arg%4 == 0 {
			return j.Retry(w.now)
		}
	case 9:
		return j.DeadlinePassed(w.who(arg), time.Minute, w.now)
	case 10, 11:
		n := stop(w.node(arg), events.Kinds[int(arg)%len(events.Kinds)], w.now.Sub(t0)+time.Duration(arg%5)*time.Minute)
		n.Cancelled = op%16 == 11
		if arg%7 == 0 {
			n.Deadline = nil
		}
		return j.ApplyNotice(n, w.now)
	case 12, 13:
		return j.Commit(w.who(arg%2), checkpoint(j.Attempt-int(arg%5)/4, int64(arg)), w.now)
	case 14:
		found := []handlers.Checkpoint{checkpoint(max(1, j.Attempt-1), int64(arg)), checkpoint(max(1, j.Attempt-2), int64(arg)+1), checkpoint(j.Attempt, 1)}
		var base *handlers.Ref
		if c := j.Candidates(found); len(c) > 0 && arg%6 > 0 {
			base = &c[int(arg)%len(c)].Ref
		}
		return j.Seal(w.who(arg%2), base, found, w.now)
	}
	w.now = w.now.Add(time.Duration(arg) * 5 * time.Second)
	return j, handlers.ErrIgnored
}

func (w *walker) walk(t *testing.T, steps []byte) {
	for i := 0; i+1 < len(steps); i += 2 {
		before := clone(t, w.job)
		w.job = before
		snapshot := text(t, before)
		after, err := w.step(steps[i], steps[i+1])
		if got := text(t, before); got != snapshot {
			t.Fatalf("step %d (op %d) changed its receiver:\n%s\n%s", i/2, steps[i]%16, snapshot, got)
		}
		if err == nil {
			w.check(t, before, after)
			after = clone(t, after)
		}
		if t.Failed() {
			t.Fatalf("at step %d: op %d with %d", i/2, steps[i]%16, steps[i+1])
		}
		if err == nil {
			w.job = after
			w.edges[[2]handlers.State{before.State, after.State}]++
		}
		if steps[i+1]%4 == 0 {
			w.job = published(w.job)
		}
	}
}

func (w *walker) check(t *testing.T, before, j handlers.Job) {
	t.Helper()
	is := func(what string, ok bool) {
		t.Helper()
		if !ok {
			t.Errorf("%s\nbefore: %s\nafter:  %s", what, text(t, before), text(t, j))
		}
	}
	retried := j.Cause == handlers.CausePerson && j.Attempt == before.Attempt+1
	is("an end is final for machines", !before.State.Terminal() || retried)
	is("the attempt grows, by one", j.Attempt == before.Attempt || j.Attempt == before.Attempt+1)
	is("seq grows", j.Seq > before.Seq)
	is("sealed never falls, and stays below the attempt", j.Sealed >= before.Sealed && j.Sealed < j.Attempt)
	is("sealed moves only when an attempt is at work", j.Sealed == before.Sealed || j.State.Live())
	is("at most one claim", len(j.Claims) <= 1)
	is("at work means claimed", !j.State.Live() || len(j.Claims) == 1)
	is("reserved means unclaimed", !j.State.Reserved() || len(j.Claims) == 0)
	is("preempting means under a notice", (j.State == handlers.Preempting) == (j.Notice != nil))
	is("only an interrupted job waits", j.RetryAt == nil || j.State == handlers.Interrupted)
	is("ended has a time", j.State.Terminal() == (j.Ended != nil))
	is("fruitless is bounded", j.Fruitless <= 5 && (j.Fruitless < 5 || j.State == handlers.Failed || before.State.Terminal()))
	is("the outbox is bounded", len(j.Outbox) <= 64)
	for _, c := range j.Claims {
		if holder := w.holders[j.Attempt]; holder == "" {
			w.holders[j.Attempt] = c.ID
		} else {
			is("an attempt has one holder, ever", holder == c.ID)
		}
	}
	checkList(t, j.Checkpoints)
	for _, c := range j.Checkpoints {
		is("the list knows no later attempt", c.Attempt <= j.Attempt)
	}
	if sealed := j.Sealed == j.Attempt-1; sealed && before.Sealed != j.Sealed {
		n := len(j.Checkpoints)
		is("after the seal the base is the newest", j.Base == nil && n == 0 || j.Base != nil && n > 0 && j.Checkpoints[n-1].Ref == *j.Base)
	}
	for _, e := range j.Outbox {
		var data struct{ Seq int }
		if err := e.DataAs(&data); err != nil || data.Seq <= before.Seq {
			continue
		}
		is("the id of an event never comes back", !w.events[e.ID()])
		w.events[e.ID()] = true
	}
}

func TestWalks(t *testing.T) {
	budgets := []handlers.Budget{{}, {Failures: ptr(1000)}, {Failures: ptr(1), Preemptions: ptr(3)}}
	edges := map[[2]handlers.State]int{}
	attempts := 0
	for seed := range uint64(120) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		steps := make([]byte, 240)
		for i := range steps {
			steps[i] = byte(rnd.Uint32())
		}
		w := newWalker([]handlers.Restarter{handlers.RestarterReprieve, handlers.RestarterNone}[seed%2], budgets[seed%3])
		w.walk(t, steps)
		for edge, n := range w.edges {
			edges[edge] += n
		}
		attempts = max(attempts, w.job.Attempt)
	}
	t.Logf("up to attempt %d, ways from state to state: %v", attempts, edges)
	if len(edges) < 25 {
		t.Errorf("%d ways from state to state were walked: the test has become weak", len(edges))
	}
}

func FuzzWalk(f *testing.F) {
	f.Add([]byte{0, 0, 14, 1, 12, 5, 10, 1, 3, 0, 5, 0, 0, 0, 14, 1})
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 400 {
			return
		}
		newWalker(handlers.RestarterReprieve, handlers.Budget{Failures: ptr(1000)}).walk(t, steps)
	})
}
