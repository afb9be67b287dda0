package handlers_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

var states = []handlers.State{
	handlers.Pending, handlers.Running, handlers.Preempting, handlers.Interrupted,
	handlers.Resuming, handlers.Succeeded, handlers.Failed, handlers.Cancelled,
}

// outcome is one word for an error, the most special first.
func outcome(err error) string {
	for _, c := range []struct {
		is   error
		word string
	}{
		{handlers.ErrSuperseded, "superseded"}, {handlers.ErrHeld, "held"}, {handlers.ErrReserved, "reserved"},
		{handlers.ErrEnded, "ended"}, {handlers.ErrIgnored, "ignored"}, {handlers.ErrConflict, "conflict"},
		{handlers.ErrInvalid, "invalid"}, {handlers.ErrPermanent, "permanent"},
	} {
		if errors.Is(err, c.is) {
			return c.word
		}
	}
	return err.Error()
}

// TestTransitions is the state machine: every transition out of every state. A cell is an error,
// or the new state, "+1" where the attempt grows, and the events. "me" holds attempt 2 where it is
// claimed. Rules 1, 2, 5, 6 and 7.
func TestTransitions(t *testing.T) {
	later := t0.Add(time.Hour) // every deadline and pause is over
	type op = func(handlers.Job) (handlers.Job, error)
	newcomer := claimOn("new", n3)
	notice := func(n events.Notice) op {
		return func(j handlers.Job) (handlers.Job, error) { return j.ApplyNotice(n, t0) }
	}
	for _, row := range []struct {
		name string
		do   op
		//   pending, running, preempting, interrupted, resuming, succeeded, failed, cancelled
		want [8]string
	}{
		{"claim the attempt", func(j handlers.Job) (handlers.Job, error) { return j.Claim(j.Attempt, newcomer, later) },
			[8]string{"running: job.started", "conflict", "conflict", "conflict", "running: job.started", "conflict", "conflict", "conflict"}},
		{"claim an older attempt", func(j handlers.Job) (handlers.Job, error) { return j.Claim(j.Attempt-1, newcomer, later) },
			[8]string{"conflict", "conflict", "conflict", "conflict", "conflict", "conflict", "conflict", "conflict"}},
		{"claim what one holds", func(j handlers.Job) (handlers.Job, error) { return j.Claim(2, claimOn("me", n2), later) },
			[8]string{"conflict", "ignored", "ignored", "conflict", "running: job.started", "conflict", "conflict", "conflict"}},
		{"start in place", func(j handlers.Job) (handlers.Job, error) { return j.StartInPlace(newcomer, false, later) },
			[8]string{"reserved", "held", "held", "running+1: job.started", "reserved", "ended", "ended", "ended"}},
		{"start in place, lease over", func(j handlers.Job) (handlers.Job, error) { return j.StartInPlace(newcomer, true, later) },
			[8]string{"reserved", "running+1: job.interrupted job.started", "running+1: job.interrupted job.started", "running+1: job.started", "reserved", "ended", "ended", "ended"}},
		{"start in place again", func(j handlers.Job) (handlers.Job, error) { return j.StartInPlace(claimOn("me", n2), true, later) },
			[8]string{"reserved", "ignored", "ignored", "running+1: job.started", "reserved", "ended", "ended", "ended"}},
		{"lose the lease", func(j handlers.Job) (handlers.Job, error) { return j.LoseLease(later) },
			[8]string{"ignored", "interrupted: job.interrupted", "interrupted: job.interrupted", "ignored", "ignored", "ignored", "ignored", "ignored"}},
		{"interrupt", func(j handlers.Job) (handlers.Job, error) { return j.Interrupt("me", handlers.CauseSigterm, "", later) },
			[8]string{"superseded", "interrupted: job.interrupted", "interrupted: job.interrupted", "ignored", "superseded", "superseded", "ignored", "superseded"}},
		{"interrupt, superseded", func(j handlers.Job) (handlers.Job, error) { return j.Interrupt("c1", handlers.CauseSigterm, "", later) },
			[8]string{"superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"end with 0", func(j handlers.Job) (handlers.Job, error) { return j.End("me", 0, "", later) },
			[8]string{"superseded", "succeeded: job.succeeded", "succeeded: job.succeeded", "succeeded: job.succeeded", "superseded", "ignored", "superseded", "superseded"}},
		{"end with 1", func(j handlers.Job) (handlers.Job, error) { return j.End("me", 1, "", later) },
			[8]string{"superseded", "interrupted: job.interrupted", "interrupted: job.interrupted", "superseded", "superseded", "superseded", "ignored", "superseded"}},
		{"end with 0, superseded", func(j handlers.Job) (handlers.Job, error) { return j.End("c1", 0, "", later) },
			[8]string{"superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"end without a claim", func(j handlers.Job) (handlers.Job, error) { return j.End("", 0, "", later) },
			[8]string{"superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"reserve", func(j handlers.Job) (handlers.Job, error) { return j.Reserve(later) },
			[8]string{"ignored", "ignored", "ignored", "resuming+1: job.resuming", "ignored", "ignored", "ignored", "ignored"}},
		{"pass over", func(j handlers.Job) (handlers.Job, error) { return j.PassOver(j.Attempt, later) },
			[8]string{"resuming+1: job.resuming", "ignored", "ignored", "ignored", "resuming+1: job.resuming", "ignored", "ignored", "ignored"}},
		{"pass over an older attempt", func(j handlers.Job) (handlers.Job, error) { return j.PassOver(j.Attempt-1, later) },
			[8]string{"ignored", "ignored", "ignored", "ignored", "ignored", "ignored", "ignored", "ignored"}},
		{"cancel", func(j handlers.Job) (handlers.Job, error) { return j.Cancel("", later) },
			[8]string{"cancelled: job.cancelled", "cancelled: job.cancelled", "cancelled: job.cancelled", "cancelled: job.cancelled", "cancelled: job.cancelled", "ignored", "ignored", "ignored"}},
		{"retry", func(j handlers.Job) (handlers.Job, error) { return j.Retry(later) },
			[8]string{"invalid", "invalid", "invalid", "resuming+1: job.resuming", "invalid", "resuming+1: job.resuming", "resuming+1: job.resuming", "resuming+1: job.resuming"}},
		{"retry without a launcher", func(j handlers.Job) (handlers.Job, error) {
			j.Restarter = handlers.RestarterNone
			return j.Retry(later)
		},
			[8]string{"invalid", "invalid", "invalid", "interrupted+1: job.interrupted", "invalid", "interrupted+1: job.interrupted", "interrupted+1: job.interrupted", "interrupted+1: job.interrupted"}},
		{"outlive the notice", func(j handlers.Job) (handlers.Job, error) { return j.DeadlinePassed("me", time.Minute, later) },
			[8]string{"superseded", "ignored", "running: job.resumed", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"before the deadline and its slack", func(j handlers.Job) (handlers.Job, error) {
			return j.DeadlinePassed("me", time.Minute, t0.Add(3*time.Minute-1))
		},
			[8]string{"superseded", "ignored", "ignored", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"stop notice", notice(stop(n2, events.KindPreempt, time.Minute)),
			[8]string{"ignored", "preempting: job.preempting checkpoint.requested", "preempting: checkpoint.requested", "interrupted:", "ignored", "ignored", "ignored", "ignored"}},
		{"later stop notice", notice(stop(n2, events.KindPreempt, time.Hour)),
			[8]string{"ignored", "preempting: job.preempting checkpoint.requested", "preempting:", "interrupted:", "ignored", "ignored", "ignored", "ignored"}},
		{"copy of the notice", notice(stop(n2, events.KindTerminate, 3*time.Minute)),
			[8]string{"ignored", "preempting: job.preempting checkpoint.requested", "ignored", "interrupted:", "ignored", "ignored", "ignored", "ignored"}},
		{"withdrawal", notice(withdrawn(stop(n2, events.KindTerminate, 2*time.Minute))),
			[8]string{"ignored", "running:", "running: job.resumed", "interrupted:", "ignored", "ignored", "ignored", "ignored"}},
		{"soft notice", notice(stop(n2, events.KindRebalance, time.Minute)),
			[8]string{"ignored", "running: checkpoint.requested", "preempting: checkpoint.requested", "interrupted:", "ignored", "ignored", "ignored", "ignored"}},
		{"machine gone", notice(events.Notice{Provider: "aws", Instance: "i-2", Kind: events.KindGone}),
			[8]string{"ignored", "interrupted: job.interrupted", "interrupted: job.interrupted", "interrupted:", "ignored", "ignored", "ignored", "ignored"}},
		{"notice for an older machine", notice(stop(n1, events.KindTerminate, time.Minute)),
			[8]string{"ignored", "ignored", "ignored", "ignored", "ignored", "ignored", "ignored", "ignored"}},
		{"commit", func(j handlers.Job) (handlers.Job, error) { return j.Commit("me", checkpoint(2, 150), later) },
			[8]string{"superseded", "running: checkpoint.committed", "preempting: checkpoint.committed", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"commit, superseded", func(j handlers.Job) (handlers.Job, error) { return j.Commit("c1", checkpoint(1, 150), later) },
			[8]string{"superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"commit for another attempt", func(j handlers.Job) (handlers.Job, error) { return j.Commit("me", checkpoint(1, 150), later) },
			[8]string{"superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded", "superseded"}},
		{"seal again", func(j handlers.Job) (handlers.Job, error) { return j.Seal("me", nil, nil, later) },
			[8]string{"superseded", "ignored", "ignored", "superseded", "superseded", "superseded", "superseded", "superseded"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			for i, state := range states {
				before := clone(t, record(state)) // full slices without room, as the store gives them
				snapshot := text(t, before)
				after, err := row.do(before)
				want(t, fmt.Sprintf("out of %s", state), cell(before, after, err), row.want[i])
				if err != nil {
					if row.name != "retry without a launcher" {
						want(t, fmt.Sprintf("out of %s: the record that came with the error", state), text(t, after), snapshot)
					}
					continue
				}
				checkEvents(t, before, after)
				scribble(after)
				want(t, fmt.Sprintf("out of %s: the receiver", state), text(t, before), snapshot)
			}
		})
	}
}

func cell(before, after handlers.Job, err error) string {
	if err != nil {
		return outcome(err)
	}
	word := string(after.State)
	if grown := after.Attempt - before.Attempt; grown != 0 {
		word += fmt.Sprintf("%+d", grown)
	}
	word += ": " + strings.Join(types(after.Outbox[len(before.Outbox):]), " ")
	return strings.TrimSuffix(word, " ")
}

// checkEvents: what a transition emits names job, uid, a transition number of its own and the state.
func checkEvents(t *testing.T, before, after handlers.Job) {
	t.Helper()
	if after.Seq <= before.Seq {
		t.Errorf("seq went from %d to %d", before.Seq, after.Seq)
	}
	for i, e := range after.Outbox[len(before.Outbox):] {
		var data struct {
			Job, UID, State string
			Attempt, Seq    int
		}
		if err := e.DataAs(&data); err != nil {
			t.Fatal(err)
		}
		if data.Job != "j" || data.UID != "uid" || data.Seq <= before.Seq || data.Seq > after.Seq {
			t.Errorf("event %s says %+v; the transition went from %d to %d", e.Type(), data, before.Seq, after.Seq)
		}
		want(t, "id of "+e.Type(), e.ID(), events.JobEventID("uid", "j", data.Seq, e.Type()))
		want(t, "subject and source", e.Subject()+e.Source(), "j"+events.Source)
		if last := i == len(after.Outbox)-len(before.Outbox)-1; last && data.State != "" && data.State != string(after.State) {
			t.Errorf("event %s says state %s, the record %s", e.Type(), data.State, after.State)
		}
		if events.TraceOf(e).Parent == "" {
			t.Errorf("event %s has no trace", e.Type())
		}
	}
}

// Rule 6: what counts as a preemption, what as a failure, once per attempt.
func TestCounters(t *testing.T) {
	r := func(s handlers.State) handlers.Job { return record(s) }
	for _, c := range []struct {
		name                  string
		job                   handlers.Job
		err                   error
		cause                 string
		preemptions, failures int
	}{
		{name: "lost lease", job: must(r(handlers.Running).LoseLease(t0)), cause: handlers.CauseLostLease, preemptions: 2},
		{name: "hand over after a notice", job: must(r(handlers.Preempting).Interrupt("me", handlers.CauseSigterm, "", t0)), cause: "terminate", preemptions: 2},
		{name: "SIGTERM", job: must(r(handlers.Running).Interrupt("me", handlers.CauseSigterm, "", t0)), cause: handlers.CauseSigterm, preemptions: 2},
		{name: "machine gone", job: must(r(handlers.Running).ApplyNotice(events.Notice{Provider: "aws", Instance: "i-2", Kind: events.KindInterrupted}, t0)), cause: "interrupted", preemptions: 2},
		{name: "crash", job: must(r(handlers.Running).End("me", 1, "", t0)), cause: handlers.CauseExit, preemptions: 1, failures: 1},
		{name: "crash under a notice", job: must(r(handlers.Preempting).End("me", 1, "", t0)), cause: "terminate", preemptions: 2},
		{name: "success under a notice", job: must(r(handlers.Preempting).End("me", 0, "", t0)), cause: handlers.CauseExit, preemptions: 1},
		{name: "in place after a lost lease", job: must(r(handlers.Running).StartInPlace(claimOn("new", n3), true, t0)), preemptions: 2},
		{name: "passed over", job: must(r(handlers.Resuming).PassOver(2, t0)), cause: handlers.CauseUnclaimed, preemptions: 1},
		{name: "retried", job: must(must(r(handlers.Running).LoseLease(t0)).Retry(t0)), cause: handlers.CausePerson},
	} {
		want(t, c.name+": cause", c.job.Cause, c.cause)
		want(t, c.name+": preemptions, failures", [2]int{c.job.Preemptions, c.job.Failures}, [2]int{c.preemptions, c.failures})
	}
}

// Whoever repeats a write of unknown outcome must find that it is as it wants it.
func TestRepeatedWritesChangeNothing(t *testing.T) {
	r, later := record, t0.Add(time.Hour)
	budget := func(state handlers.State, b handlers.Budget) handlers.Job {
		j := record(state)
		j.Launch = &handlers.Launch{Kind: "local", Budget: b}
		return j
	}
	none := record(handlers.Failed)
	none.Restarter = handlers.RestarterNone
	fruitless := record(handlers.Running)
	fruitless.Fruitless = 4
	for name, c := range map[string]struct {
		j  handlers.Job
		do func(handlers.Job) (handlers.Job, error)
	}{
		"claim":                  {r(handlers.Resuming), func(j handlers.Job) (handlers.Job, error) { return j.Claim(2, claimOn("x", n3), later) }},
		"start in place":         {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) { return j.StartInPlace(claimOn("x", n3), true, later) }},
		"lose the lease":         {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) { return j.LoseLease(later) }},
		"interrupt":              {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) { return j.Interrupt("me", "sigterm", "", later) }},
		"interrupt preempting":   {r(handlers.Preempting), func(j handlers.Job) (handlers.Job, error) { return j.Interrupt("me", "sigterm", "", later) }},
		"interrupt, over budget": {budget(handlers.Running, handlers.Budget{Preemptions: ptr(1)}), func(j handlers.Job) (handlers.Job, error) { return j.Interrupt("me", "sigterm", "", later) }},
		"interrupt, fruitless":   {fruitless, func(j handlers.Job) (handlers.Job, error) { return j.Interrupt("me", "sigterm", "", later) }},
		"end with 0":             {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) { return j.End("me", 0, "", later) }},
		"end with 1":             {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) { return j.End("me", 1, "", later) }},
		"end with 1, preempting": {r(handlers.Preempting), func(j handlers.Job) (handlers.Job, error) { return j.End("me", 1, "", later) }},
		"end with 1, failed":     {budget(handlers.Running, handlers.Budget{Failures: ptr(0)}), func(j handlers.Job) (handlers.Job, error) { return j.End("me", 1, "", later) }},
		"end with 1, preemption budget": {budget(handlers.Preempting, handlers.Budget{Preemptions: ptr(1)}),
			func(j handlers.Job) (handlers.Job, error) { return j.End("me", 1, "", later) }},
		"reserve":                  {r(handlers.Interrupted), func(j handlers.Job) (handlers.Job, error) { return j.Reserve(later) }},
		"pass over":                {r(handlers.Resuming), func(j handlers.Job) (handlers.Job, error) { return j.PassOver(2, later) }},
		"cancel":                   {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) { return j.Cancel("", later) }},
		"retry":                    {r(handlers.Failed), func(j handlers.Job) (handlers.Job, error) { return j.Retry(later) }},
		"retry without a launcher": {none, func(j handlers.Job) (handlers.Job, error) { return j.Retry(later) }},
		"outlive the notice":       {r(handlers.Preempting), func(j handlers.Job) (handlers.Job, error) { return j.DeadlinePassed("me", 0, later) }},
		"notice": {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) {
			return j.ApplyNotice(stop(n2, events.KindStop, time.Minute), later)
		}},
		"withdrawal": {r(handlers.Preempting), func(j handlers.Job) (handlers.Job, error) {
			return j.ApplyNotice(withdrawn(stop(n2, events.KindTerminate, 2*time.Minute)), later)
		}},
		"commit": {r(handlers.Running), func(j handlers.Job) (handlers.Job, error) { return j.Commit("me", checkpoint(2, 150), later) }},
		"seal":   {unsealed(), func(j handlers.Job) (handlers.Job, error) { return j.Seal("me", ptr(ref(1, 100)), nil, later) }},
		"seal of attempt 1": {must(r(handlers.Pending).Claim(1, claimOn("me", n2), t0)), func(j handlers.Job) (handlers.Job, error) {
			if next, err := j.Seal("me", nil, nil, later); !errors.Is(err, handlers.ErrIgnored) {
				return next, err
			}
			return j.Commit("me", checkpoint(1, 1), later)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			once, err := c.do(c.j)
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.do(clone(t, once))
			wantClass(t, "again", err, handlers.ErrIgnored)
		})
	}
}

// unsealed is a job whose attempt 2 has started and not yet been restored.
func unsealed() handlers.Job {
	return must(record(handlers.Resuming).Claim(2, claimOn("me", n2), t0))
}

func TestBudgets(t *testing.T) {
	job := func(b handlers.Budget) handlers.Job {
		j := record(handlers.Running)
		j.Launch = &handlers.Launch{Budget: b}
		return j
	}
	crash := func(j handlers.Job) handlers.Job {
		for range 10 {
			if j = must(j.End(j.Claims[0].ID, 1, "exit 1", t0)); j.State.Terminal() {
				return j
			}
			j = must(must(j.StartInPlace(claimOn("x", n3), false, t0)).Seal("x", ptr(ref(1, 100)), nil, t0))
			j = must(j.Commit("x", checkpoint(j.Attempt, 200), t0))
			j = published(j)
		}
		return j
	}
	for name, c := range map[string]struct {
		got                   handlers.Job
		state                 handlers.State
		preemptions, failures int
	}{
		"failures by default 3":             {crash(job(handlers.Budget{})), handlers.Failed, 1, 4},
		"failures 0":                        {crash(job(handlers.Budget{Failures: ptr(0)})), handlers.Failed, 1, 1},
		"failures 1":                        {crash(job(handlers.Budget{Failures: ptr(1)})), handlers.Failed, 1, 2},
		"preemptions unlimited":             {must(job(handlers.Budget{}).LoseLease(t0)), handlers.Interrupted, 2, 0},
		"preemptions 1":                     {must(job(handlers.Budget{Preemptions: ptr(1)}).LoseLease(t0)), handlers.Failed, 2, 0},
		"preemptions 2":                     {must(job(handlers.Budget{Preemptions: ptr(2)}).LoseLease(t0)), handlers.Interrupted, 2, 0},
		"in place after one too many":       {must(job(handlers.Budget{Preemptions: ptr(1)}).StartInPlace(claimOn("x", n3), true, t0)), handlers.Failed, 2, 0},
		"a person's retry gives fresh ones": {must(must(job(handlers.Budget{Preemptions: ptr(1)}).LoseLease(t0)).Retry(t0)), handlers.Resuming, 0, 0},
	} {
		if c.got.State != c.state || c.got.Preemptions != c.preemptions || c.got.Failures != c.failures {
			t.Errorf("%s: %s with %d preemptions and %d failures, want %s with %d and %d", name,
				c.got.State, c.got.Preemptions, c.got.Failures, c.state, c.preemptions, c.failures)
		}
	}
}

// Rule 6: five attempts in a row that commit nothing end the job, however they end.
func TestFruitless(t *testing.T) {
	ways := map[string]func(handlers.Job) handlers.Job{ // from running to the next attempt or the end
		"lost lease": func(j handlers.Job) handlers.Job { return must(j.LoseLease(t0)) },
		"hand over":  func(j handlers.Job) handlers.Job { return must(j.Interrupt("x", "preempt", "", t0)) },
		"gone": func(j handlers.Job) handlers.Job {
			return must(j.ApplyNotice(events.Notice{Provider: "aws", Instance: j.Claims[0].Node.Instance, Kind: events.KindGone}, t0))
		},
		"crash": func(j handlers.Job) handlers.Job { return must(j.End("x", 1, "", t0)) },
	}
	for name, end := range ways {
		t.Run(name, func(t *testing.T) {
			j := handlers.NewJob("j", "uid", handlers.RestarterReprieve, spec(), t0)
			j.Launch.Budget.Failures = ptr(100)
			for attempt := 1; attempt <= 5; attempt++ {
				want(t, "attempt", j.Attempt, attempt)
				machine := events.Node{Provider: "aws", Instance: fmt.Sprint("i-", attempt)}
				j = end(must(j.Claim(attempt, claimOn("x", machine), t0)))
				want(t, "fruitless", j.Fruitless, attempt)
				if attempt < 5 {
					j = must(j.Reserve(t0.Add(time.Hour)))
				}
			}
			want(t, "state and cause", [2]string{string(j.State), j.Cause}, [2]string{"failed", handlers.CauseNoProgress})
		})
	}
	t.Run("passed over", func(t *testing.T) {
		j := handlers.NewJob("j", "uid", handlers.RestarterReprieve, spec(), t0)
		for range 5 {
			j = must(j.PassOver(j.Attempt, t0))
		}
		want(t, "state, cause, attempt", []any{j.State, j.Cause, j.Attempt}, []any{handlers.Failed, handlers.CauseNoProgress, 5})
	})
	for name, progress := range map[string]func(handlers.Job) handlers.Job{
		"a commit begins the count again": func(j handlers.Job) handlers.Job {
			j = must(j.Seal("x", nil, nil, t0))
			return must(j.Commit("x", checkpoint(j.Attempt, 1), t0))
		},
		"so does what the seal adopts": func(j handlers.Job) handlers.Job {
			return must(j.Seal("x", ptr(ref(1, 9)), []handlers.Checkpoint{checkpoint(1, 9)}, t0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := handlers.NewJob("j", "uid", handlers.RestarterNone, nil, t0)
			j = must(j.Claim(1, claimOn("x", n3), t0))
			for range 4 {
				j = must(must(j.LoseLease(t0)).StartInPlace(claimOn("x", n3), false, t0))
			}
			want(t, "fruitless", j.Fruitless, 4)
			j = progress(j)
			want(t, "fruitless after progress", j.Fruitless, 0)
			j = must(j.LoseLease(t0))
			want(t, "state", j.State, handlers.Interrupted)
		})
	}
}

func TestBackoff(t *testing.T) {
	d := func(s time.Duration) handlers.Duration { return handlers.Duration(s * time.Second) }
	for name, c := range map[string]struct {
		backoff handlers.Backoff
		want    []time.Duration // seconds after the first, second, ... failure
	}{
		"default":          {handlers.Backoff{}, []time.Duration{10, 20, 40, 80, 160, 320, 600, 600}},
		"own":              {handlers.Backoff{Initial: d(1), Factor: 3, Max: d(20)}, []time.Duration{1, 3, 9, 20, 20}},
		"constant":         {handlers.Backoff{Initial: d(5), Factor: 1}, []time.Duration{5, 5, 5}},
		"more than max":    {handlers.Backoff{Initial: d(30), Max: d(7)}, []time.Duration{7, 7}},
		"factor too small": {handlers.Backoff{Factor: 0.5}, []time.Duration{10, 20}},
	} {
		for i, seconds := range c.want {
			j := record(handlers.Running)
			j.Launch = &handlers.Launch{Backoff: c.backoff, Budget: handlers.Budget{Failures: ptr(1000)}}
			j.Failures = i
			j = must(j.End("me", 1, "", t0))
			until := t0.Add(seconds * time.Second)
			if j.RetryAt == nil || !j.RetryAt.Equal(until) {
				t.Errorf("%s: after failure %d not before %v, want %v", name, i+1, j.RetryAt, until)
				continue
			}
			_, err := j.Reserve(until.Add(-1))
			wantClass(t, name+": reserve a moment too early", err, handlers.ErrIgnored)
			next, err := j.Reserve(until)
			if err != nil || next.RetryAt != nil {
				t.Errorf("%s: reserve in time: retry at %v, error %v", name, next.RetryAt, err)
			}
		}
	}
	j := record(handlers.Running)
	j.Launch = &handlers.Launch{Budget: handlers.Budget{Failures: ptr(1 << 30)}}
	j.Failures = 1 << 20
	want(t, "a million failures", must(j.End("me", 1, "", t0)).RetryAt.Sub(t0), 10*time.Minute)
}

// Only one party restarts a job, and a SIGTERM that nothing explains starts nothing.
func TestReserve(t *testing.T) {
	for _, restarter := range []handlers.Restarter{handlers.RestarterNone, handlers.RestarterPlatform} {
		j := record(handlers.Interrupted)
		j.Restarter = restarter
		_, err := j.Reserve(t0)
		wantClass(t, string(restarter), err, handlers.ErrIgnored)
	}
	j := must(record(handlers.Running).Interrupt("me", handlers.CauseSigterm, "", t0))
	_, err := j.Reserve(t0)
	wantClass(t, "SIGTERM", err, handlers.ErrIgnored)
	j = must(record(handlers.Interrupted).Reserve(t0))
	want(t, "claims, base", []any{len(j.Claims), j.Base}, []any{0, (*handlers.Ref)(nil)})
	want(t, "launch name", j.LaunchName(), "j-3")
}

func TestOutboxIsBounded(t *testing.T) {
	j := record(handlers.Running)
	for step := range int64(100) {
		j = must(j.Commit("me", checkpoint(2, step), t0))
	}
	want(t, "outbox", len(j.Outbox), 64)
	want(t, "dropped", j.OutboxDropped, 36)
	var data events.Checkpoint
	if err := j.Outbox[63].DataAs(&data); err != nil || *data.Step != 99 {
		t.Errorf("the last event is of step %v, want 99 (error %v)", data.Step, err)
	}
}

func TestPublished(t *testing.T) {
	j := must(record(handlers.Running).ApplyNotice(stop(n2, events.KindStop, time.Minute), t0))
	first, second := j.Outbox[0], j.Outbox[1]
	after, err := j.Published([]string{first.ID(), "unknown"})
	if err != nil || len(after.Outbox) != 1 || after.Outbox[0].ID() != second.ID() {
		t.Errorf("left in the outbox: %v, error %v; want only the second", types(after.Outbox), err)
	}
	want(t, "seq", after.Seq, j.Seq)
	want(t, "the receiver's outbox", j.Outbox[0].ID(), first.ID())
	_, err = after.Published([]string{first.ID()})
	wantClass(t, "again", err, handlers.ErrIgnored)
}

func TestEventsCarryTheTrace(t *testing.T) {
	j := record(handlers.Running)
	j.Trace = events.Trace{Parent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}
	j = must(j.ApplyNotice(stop(n2, events.KindStop, time.Minute), t0))
	spans := map[string]bool{}
	for _, e := range j.Outbox {
		parent := events.TraceOf(e).Parent
		want(t, "trace of "+e.Type(), parent[:36], "00-0123456789abcdef0123456789abcdef-")
		spans[parent] = true
	}
	want(t, "spans", len(spans), 2)
}

// Two futures of one record, as a decision that is made again has them, share nothing.
func TestFuturesShareNothing(t *testing.T) {
	j := must(record(handlers.Preempting).Commit("me", checkpoint(2, 120), t0))
	j.Outbox, j.Seen, j.Checkpoints = roomy(j.Outbox), roomy(j.Seen), roomy(j.Checkpoints)
	for name, futures := range map[string][2]func() handlers.Job{
		"commits": {
			func() handlers.Job { return must(j.Commit("me", checkpoint(2, 150), t0)) },
			func() handlers.Job { return must(j.Commit("me", checkpoint(2, 110), t0)) },
		},
		"notices": {
			func() handlers.Job { return must(j.ApplyNotice(stop(n2, events.KindStop, time.Minute), t0)) },
			func() handlers.Job { return must(j.ApplyNotice(stop(n2, events.KindPreempt, time.Second), t0)) },
		},
	} {
		before := text(t, j)
		one := futures[0]()
		snapshot := text(t, one)
		futures[1]()
		want(t, name+": the first, once the second is made", text(t, one), snapshot)
		want(t, name+": the receiver", text(t, j), before)
	}
}

// roomy returns list with room behind it, which an append would write to.
func roomy[T any](list []T) []T { return append(make([]T, 0, len(list)+8), list...) }
