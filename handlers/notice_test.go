package handlers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/handlers"
)

func noticeEvent(t *testing.T, n events.Notice) events.Event {
	t.Helper()
	e, err := notice.Event(n, t0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Rule 25: what is the same notice. Each case applies first, then second to a running job.
func TestNoticeIdentity(t *testing.T) {
	first := stop(n2, events.KindTerminate, 2*time.Minute)
	for name, c := range map[string]struct {
		first, second events.Notice
		copy          bool
		state         handlers.State
		deadline      time.Duration // in force at the end
	}{
		"the same":                      {first, first, true, handlers.Preempting, 2 * time.Minute},
		"90 s later":                    {first, stop(n2, events.KindTerminate, 3*time.Minute+30*time.Second), true, handlers.Preempting, 2 * time.Minute},
		"90 s earlier":                  {first, stop(n2, events.KindTerminate, 30*time.Second), true, handlers.Preempting, 2 * time.Minute},
		"91 s later":                    {first, stop(n2, events.KindTerminate, 3*time.Minute+31*time.Second), false, handlers.Preempting, 2 * time.Minute},
		"91 s earlier moves it":         {first, stop(n2, events.KindTerminate, 29*time.Second), false, handlers.Preempting, 29 * time.Second},
		"another kind, earlier":         {first, stop(n2, events.KindStop, time.Minute), false, handlers.Preempting, time.Minute},
		"another kind, later":           {first, stop(n2, events.KindStop, 5*time.Minute), false, handlers.Preempting, 2 * time.Minute},
		"without a deadline":            {first, events.Notice{Provider: "aws", Instance: "i-2", Kind: events.KindTerminate}, false, handlers.Preempting, 2 * time.Minute},
		"a deadline where there was no": {events.Notice{Provider: "aws", Instance: "i-2", Kind: events.KindTerminate}, first, false, handlers.Preempting, 2 * time.Minute},
		"withdrawn":                     {first, withdrawn(first), false, handlers.Running, 0},
		"withdrawn, by a copy":          {first, withdrawn(stop(n2, events.KindTerminate, time.Minute)), false, handlers.Running, 0},
		"another one withdrawn":         {first, withdrawn(stop(n2, events.KindStop, 2*time.Minute)), false, handlers.Preempting, 2 * time.Minute},
		"withdrawn before it came":      {withdrawn(first), first, true, handlers.Running, 0},
		"withdrawn twice":               {withdrawn(first), withdrawn(first), true, handlers.Running, 0},
	} {
		t.Run(name, func(t *testing.T) {
			once := must(record(handlers.Running).ApplyNotice(c.first, t0))
			twice, err := once.ApplyNotice(c.second, t0)
			if got := errors.Is(err, handlers.ErrIgnored); got != c.copy {
				t.Fatalf("the second one is a copy: %t (%v), want %t", got, err, c.copy)
			}
			want(t, "state", twice.State, c.state)
			if c.state == handlers.Preempting {
				want(t, "deadline", twice.Notice.Deadline.Sub(t0), c.deadline)
				want(t, "cause", twice.Cause, string(twice.Notice.Kind))
			}
			if !c.copy {
				want(t, "seen", len(twice.Seen), 2)
			}
		})
	}
}

// When the notice in force falls away, the earliest of the others that stand takes its place.
func TestNoticeMakesRoomForTheNext(t *testing.T) {
	a, b, c := stop(n2, events.KindTerminate, 10*time.Minute), stop(n2, events.KindStop, 2*time.Minute), stop(n2, events.KindHibernate, 5*time.Minute)
	j := record(handlers.Running)
	for _, n := range []events.Notice{a, b, c} {
		j = must(j.ApplyNotice(n, t0))
	}
	want(t, "in force", j.Notice.Kind, b.Kind)
	j = published(must(j.ApplyNotice(withdrawn(b), t0)))
	want(t, "after a withdrawal", j.Notice.Kind, c.Kind)
	j = must(j.DeadlinePassed("me", time.Minute, t0.Add(6*time.Minute)))
	want(t, "after a deadline", j.Notice.Kind, a.Kind)
	want(t, "state", j.State, handlers.Preempting)
	want(t, "events", types(j.Outbox), []string{"checkpoint.requested"})
	_, err := j.DeadlinePassed("me", time.Minute, t0.Add(6*time.Minute))
	wantClass(t, "again", err, handlers.ErrIgnored)
	j = must(j.DeadlinePassed("me", time.Minute, t0.Add(11*time.Minute)))
	want(t, "after the last", j.State, handlers.Running)
}

// A SIGTERM alone starts nothing; the notice that explains it does. Rule 6 and 22.
func TestNoticeExplainsSigterm(t *testing.T) {
	j := published(must(record(handlers.Running).Interrupt("me", handlers.CauseSigterm, "", t0)))
	for name, c := range map[string]struct {
		n         events.Notice
		explained bool
	}{
		"stop":          {stop(n2, events.KindPreempt, time.Minute), true},
		"gone":          {events.Notice{Provider: "aws", Instance: "i-2", Kind: events.KindGone}, true},
		"soft":          {stop(n2, events.KindRebalance, time.Minute), false},
		"withdrawal":    {withdrawn(stop(n2, events.KindPreempt, time.Minute)), false},
		"other machine": {stop(n3, events.KindPreempt, time.Minute), false},
	} {
		after, _ := j.ApplyNotice(c.n, t0)
		_, err := after.Reserve(t0)
		if got := err == nil; got != c.explained {
			t.Errorf("%s: it can be started again: %t (%v), want %t", name, got, err, c.explained)
		}
		if c.explained {
			want(t, name+": events", types(after.Outbox), []string{"job.interrupted"})
			want(t, name+": preemptions", after.Preemptions, j.Preemptions)
		}
	}
	early := must(record(handlers.Running).ApplyNotice(stop(n2, events.KindPreempt, time.Minute), t0))
	j = must(early.Interrupt("me", handlers.CauseSigterm, "", t0))
	want(t, "a SIGTERM under a notice has its cause", j.Cause, "preempt")
}

// What was seen of a machine counts as long as the job stays on it. Rule 22.
func TestSeenFollowsTheMachine(t *testing.T) {
	n := stop(n2, events.KindTerminate, 2*time.Minute)
	j := must(record(handlers.Running).ApplyNotice(n, t0))
	j = must(j.LoseLease(t0))
	stays := must(j.StartInPlace(claimOn("x", n2), false, t0))
	want(t, "seen on the same machine", len(stays.Seen), 1)
	moves := must(j.StartInPlace(claimOn("x", n3), false, t0))
	want(t, "seen on another machine", len(moves.Seen), 0)
	_, err := moves.ApplyNotice(n, t0)
	wantClass(t, "a late copy for the old machine", err, handlers.ErrIgnored)
}

func TestNoticeHandler(t *testing.T) {
	ctx := t.Context()
	n := stop(n2, events.KindTerminate, 2*time.Minute)
	var noted []events.Notice
	onNode := func(names ...string) *nodes {
		noted = nil
		return &nodes{
			jobs: func(node events.Node) ([]string, error) {
				if node != n2 {
					return nil, handlers.ErrNotFound
				}
				return names, nil
			},
			note: func(n events.Notice) error { noted = append(noted, n); return nil },
		}
	}
	handler := func(j *jobs, n *nodes) *handlers.Notice {
		return &handlers.Notice{Jobs: j, Nodes: n, Now: func() time.Time { return t0 }}
	}
	other := record(handlers.Running)
	other.Name = "k"

	t.Run("every job on the machine", func(t *testing.T) {
		m := map[string]handlers.Job{"j": record(handlers.Running), "k": other, "old": record(handlers.Succeeded)}
		h := handler(records(m), onNode("j", "gone", "old", "k"))
		out, err := h.Handle(ctx, noticeEvent(t, n))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "events", types(out), []string{"job.preempting", "checkpoint.requested", "job.preempting", "checkpoint.requested"})
		want(t, "noted", noted, []events.Notice{n})
		want(t, "states", []handlers.State{m["j"].State, m["k"].State}, []handlers.State{handlers.Preempting, handlers.Preempting})
		trace := events.TraceOf(noticeEvent(t, n)).Parent[:36]
		want(t, "the trace goes on", events.TraceOf(out[0]).Parent[:36], trace)
	})
	t.Run("a delivery that was cut off before it published", func(t *testing.T) {
		m := map[string]handlers.Job{"j": record(handlers.Running)}
		h := handler(records(m), onNode("j"))
		first, err := h.Handle(ctx, noticeEvent(t, n))
		if err != nil {
			t.Fatal(err)
		}
		second, err := h.Handle(ctx, noticeEvent(t, n))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "the second delivery's events", types(second), types(first))
		want(t, "their ids", second[0].ID(), first[0].ID())
		m["j"] = published(m["j"])
		_, err = h.Handle(ctx, noticeEvent(t, n))
		wantClass(t, "a third, once they are published", err, handlers.ErrIgnored)
	})
	t.Run("cut off between two jobs", func(t *testing.T) {
		m := map[string]handlers.Job{"j": record(handlers.Running), "k": other}
		port := records(m)
		update, fail := port.update, true
		port.update = func(ctx context.Context, job string, decide func(handlers.Job) (handlers.Job, error)) (handlers.Job, error) {
			if job == "k" && fail {
				return handlers.Job{}, handlers.ErrUnavailable
			}
			return update(ctx, job, decide)
		}
		h := handler(port, onNode("j", "k"))
		_, err := h.Handle(ctx, noticeEvent(t, n))
		wantClass(t, "the first delivery", err, handlers.ErrUnavailable)
		fail = false
		out, err := h.Handle(ctx, noticeEvent(t, n))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "events of both", types(out), []string{"job.preempting", "checkpoint.requested", "job.preempting", "checkpoint.requested"})
	})
	t.Run("withdrawal", func(t *testing.T) {
		m := map[string]handlers.Job{"j": record(handlers.Preempting)}
		out, err := handler(records(m), onNode("j")).Handle(ctx, noticeEvent(t, withdrawn(n)))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "events", types(out), []string{"job.resumed"})
	})
	t.Run("nothing there", func(t *testing.T) {
		m := map[string]handlers.Job{"j": record(handlers.Succeeded)}
		_, err := handler(records(m), onNode("j")).Handle(ctx, noticeEvent(t, stop(n3, events.KindTerminate, time.Minute)))
		wantClass(t, "unknown machine", err, handlers.ErrIgnored)
		want(t, "noted of an unknown machine", len(noted), 0)
		_, err = handler(records(m), onNode("j")).Handle(ctx, noticeEvent(t, n))
		wantClass(t, "ended job", err, handlers.ErrIgnored)
		want(t, "noted of a known machine", len(noted), 1)
		_, err = handler(records(m), onNode("missing")).Handle(ctx, noticeEvent(t, n))
		wantClass(t, "record missing", err, handlers.ErrIgnored)
	})
	t.Run("store errors", func(t *testing.T) {
		broken := onNode("j")
		broken.jobs = func(events.Node) ([]string, error) { return nil, handlers.ErrUnavailable }
		_, err := handler(records(nil), broken).Handle(ctx, noticeEvent(t, n))
		wantClass(t, "jobs of the node", err, handlers.ErrUnavailable)
		broken = onNode("j")
		broken.note = func(events.Notice) error { return handlers.ErrUnavailable }
		_, err = handler(records(nil), broken).Handle(ctx, noticeEvent(t, n))
		wantClass(t, "note", err, handlers.ErrUnavailable)
	})
	t.Run("malformed", func(t *testing.T) {
		lying := noticeEvent(t, n)
		lying.SetType(events.TypeNodeNoticeCancelled)
		text := noticeEvent(t, n)
		if err := text.SetData("application/json", []byte(`"x"`)); err != nil {
			t.Fatal(err)
		}
		h := handler(records(map[string]handlers.Job{"j": record(handlers.Running)}), onNode("j"))
		for name, e := range map[string]events.Event{
			"no instance":                     noticeEvent(t, events.Notice{Provider: "aws", Kind: events.KindStop}),
			"no provider":                     noticeEvent(t, events.Notice{Instance: "i-2", Kind: events.KindStop}),
			"unknown kind":                    noticeEvent(t, stop(n2, "doom", time.Minute)),
			"no kind":                         noticeEvent(t, stop(n2, "", time.Minute)),
			"type and field cancelled differ": lying,
			"no object":                       text,
		} {
			_, err := h.Handle(ctx, e)
			wantClass(t, name, err, handlers.ErrInvalid)
		}
	})
}
