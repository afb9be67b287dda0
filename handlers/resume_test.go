package handlers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// interrupted returns the record of an interrupted job and the event that said so.
func interrupted() (handlers.Job, events.Event) {
	j := must(record(handlers.Running).LoseLease(t0))
	return published(j), j.Outbox[0]
}

func TestResume(t *testing.T) {
	ctx := t.Context()
	var launched []string
	launches := func(err error) *launcher {
		launched = nil
		return &launcher{launch: func(j handlers.Job) error { launched = append(launched, j.LaunchName()); return err }}
	}
	handler := func(m map[string]handlers.Job, l *launcher) *handlers.Resume {
		return &handlers.Resume{Jobs: records(m), Launcher: l, Now: func() time.Time { return t0 }}
	}

	t.Run("launches the next attempt", func(t *testing.T) {
		j, e := interrupted()
		m := map[string]handlers.Job{"j": j}
		out, err := handler(m, launches(nil)).Handle(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "events", types(out), []string{"job.resuming"})
		want(t, "launched", launched, []string{"j-3"})
		want(t, "state, attempt", []any{m["j"].State, m["j"].Attempt}, []any{handlers.Resuming, 3})
	})
	t.Run("cut off before the launch", func(t *testing.T) {
		j, e := interrupted()
		m := map[string]handlers.Job{"j": j}
		_, err := handler(m, launches(errors.New("no network"))).Handle(ctx, e)
		wantClass(t, "the first delivery is retried", handlers.Class(err), handlers.ErrUnavailable)
		out, err := handler(m, launches(nil)).Handle(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "events of the second delivery", types(out), []string{"job.resuming"})
		want(t, "launched", launched, []string{"j-3"})
		want(t, "attempt", m["j"].Attempt, 3)
		m["j"] = must(m["j"].Claim(3, claimOn("x", n3), t0))
		_, err = handler(m, launches(nil)).Handle(ctx, e)
		wantClass(t, "a third delivery, once it is claimed", err, handlers.ErrIgnored)
		want(t, "launched by it", len(launched), 0)
	})
	t.Run("what a retry cannot mend is an alert", func(t *testing.T) {
		for _, class := range []error{handlers.ErrInvalid, handlers.ErrConflict, handlers.ErrPermanent, handlers.ErrNotFound} {
			j, e := interrupted()
			out, err := handler(map[string]handlers.Job{"j": j}, launches(fmt.Errorf("%w: template.command is missing", class))).Handle(ctx, e)
			if err != nil {
				t.Fatal(err)
			}
			want(t, class.Error(), types(out), []string{"job.resuming", "alert.raised"})
			alert, err := events.Decode[events.Alert](out[1])
			if err != nil || alert.Code != "launch-refused" || alert.Job != "j" {
				t.Errorf("alert %+v, error %v", alert, err)
			}
		}
	})
	t.Run("nothing to do", func(t *testing.T) {
		_, e := interrupted()
		for _, state := range states {
			if state == handlers.Interrupted {
				continue
			}
			_, err := handler(map[string]handlers.Job{"j": record(state)}, launches(nil)).Handle(ctx, e)
			wantClass(t, string(state), err, handlers.ErrIgnored)
			want(t, string(state)+": launched", len(launched), 0)
		}
		j, _ := interrupted()
		j.Restarter = handlers.RestarterPlatform
		_, err := handler(map[string]handlers.Job{"j": j}, launches(nil)).Handle(ctx, e)
		wantClass(t, "another restarter", err, handlers.ErrIgnored)
	})
	t.Run("another job of the name", func(t *testing.T) {
		j, e := interrupted()
		reserved := must(j.Reserve(t0))
		for _, j := range []handlers.Job{j, reserved} {
			j.UID = "other"
			_, err := handler(map[string]handlers.Job{"j": j}, launches(nil)).Handle(ctx, e)
			wantClass(t, string(j.State), err, handlers.ErrIgnored)
			want(t, string(j.State)+": launched", len(launched), 0)
		}
	})
	t.Run("no record", func(t *testing.T) {
		_, e := interrupted()
		_, err := handler(nil, launches(nil)).Handle(ctx, e)
		wantClass(t, "error", err, handlers.ErrNotFound)
	})
	t.Run("malformed", func(t *testing.T) {
		_, e := interrupted()
		e = e.Clone()
		if err := e.SetData("application/json", []byte(`[]`)); err != nil {
			t.Fatal(err)
		}
		_, err := handler(nil, launches(nil)).Handle(ctx, e)
		wantClass(t, "error", err, handlers.ErrInvalid)
	})
}
