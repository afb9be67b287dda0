package catalog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

func stop(n events.Node, kind events.Kind, after time.Duration) events.Notice {
	return events.Notice{Provider: n.Provider, Instance: n.Instance, Kind: kind, Deadline: ptr(t0.Add(after))}
}

func withdrawn(n events.Notice) events.Notice {
	n.Cancelled = true
	return n
}

func TestRegister(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		ctx := t.Context()
		_, err := c.Jobs(ctx, n1)
		wantClass(t, "unknown machine", err, handlers.ErrNotFound)
		for _, step := range []struct {
			do   func() error
			want []string
		}{
			{func() error { return c.Register(ctx, n1, "a") }, []string{"a"}},
			{func() error { return c.Register(ctx, n1, "b") }, []string{"a", "b"}},
			{func() error { return c.Register(ctx, n1, "a") }, []string{"a", "b"}},
			{func() error { return c.Unregister(ctx, n1, "a") }, []string{"b"}},
			{func() error { return c.Unregister(ctx, n1, "a") }, []string{"b"}},
			{func() error { return c.Note(ctx, stop(n1, events.KindStop, 0)) }, []string{"b"}},
			{func() error { return c.Unregister(ctx, n1, "b") }, []string{}},
			{func() error { return c.Register(ctx, events.Node{Provider: "k8s", Instance: "../odd/näme"}, "a") }, []string{}},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			got, err := c.Jobs(ctx, n1)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "jobs", got, step.want)
		}
		got, err := c.Jobs(ctx, events.Node{Provider: "k8s", Instance: "../odd/näme"})
		want(t, "jobs of an odd machine", []any{got, err}, []any{[]string{"a"}, error(nil)})
		wantClass(t, "a name that no store can hold", c.Register(ctx, events.Node{Provider: "k8s", Instance: strings.Repeat("x", 300)}, "a"), handlers.ErrInvalid)
	})
}

func TestRegisterDecidesAgain(t *testing.T) {
	w := newWorld()
	tries := 0
	w.spy.before = func(_ int, op string) error {
		if tries++; strings.Contains(op, "create nodes/") || strings.Contains(op, "swap nodes/") && tries < 12 {
			return w.truth.Register(t.Context(), n1, fmt.Sprint("other", tries))
		}
		return nil
	}
	if err := w.Register(t.Context(), n1, "j"); err != nil {
		t.Fatal(err)
	}
	got, err := w.truth.Jobs(t.Context(), n1)
	if err != nil || len(got) < 3 || got[len(got)-1] != "j" {
		t.Errorf("jobs %v, error %v: want those of the others and j", got, err)
	}
	w.spy.before = func(int, string) error { return errAway }
	wantClass(t, "store away", w.Register(t.Context(), n1, "k"), handlers.ErrUnavailable)
}

// Rule 5: what a process that is about to start has to know of its machine.
func TestOpenStop(t *testing.T) {
	w := newWorld()
	if got, err := w.OpenStop(t.Context(), n1); got != nil {
		t.Errorf("of an unknown machine: %v, error %v", got, err)
	}
	terminate := stop(n1, events.KindTerminate, 2*time.Minute)
	for name, c := range map[string]struct {
		noted []events.Notice
		now   time.Duration
		want  *events.Notice
	}{
		"none":                     {nil, 0, nil},
		"open":                     {[]events.Notice{terminate}, 0, &terminate},
		"late":                     {[]events.Notice{terminate}, 4 * time.Minute, &terminate},
		"long past":                {[]events.Notice{terminate}, 4*time.Minute + 1, nil},
		"withdrawn":                {[]events.Notice{terminate, withdrawn(terminate)}, 0, nil},
		"withdrawn before it came": {[]events.Notice{withdrawn(terminate), terminate}, 0, nil},
		"another one withdrawn":    {[]events.Notice{terminate, withdrawn(stop(n1, events.KindStop, 2*time.Minute))}, 0, &terminate},
		"soft":                     {[]events.Notice{stop(n1, events.KindRebalance, time.Minute)}, 0, nil},
		"another machine's":        {[]events.Notice{stop(n2, events.KindTerminate, time.Minute)}, 0, nil},
		"after forty others": {append(func() (many []events.Notice) {
			for i := range 40 {
				many = append(many, stop(n1, events.KindRebalance, time.Duration(i)*time.Hour))
			}
			return many
		}(), terminate, terminate), 0, &terminate},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			if err := w.Register(t.Context(), n1, "j"); err != nil {
				t.Fatal(err)
			}
			for _, n := range c.noted {
				if err := w.Note(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
			w.now = t0.Add(c.now)
			got, err := w.OpenStop(t.Context(), n1)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "open stop", got, c.want)
			jobs, err := w.Jobs(t.Context(), n1)
			want(t, "jobs", []any{jobs, err}, []any{[]string{"j"}, error(nil)})
		})
	}
}
