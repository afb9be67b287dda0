package events_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/events"
)

var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

func traced(t *testing.T, id string) events.Event {
	t.Helper()
	e, err := events.New(events.TypeJobStarted, events.Source, "j", id, noon, events.Job{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// split returns trace id, span id and flags.
func split(t *testing.T, parent string) (trace, span, flags string) {
	t.Helper()
	if !traceparent.MatchString(parent) {
		t.Fatalf("got traceparent %q", parent)
	}
	parts := strings.Split(parent, "-")
	return parts[1], parts[2], parts[3]
}

// A chain of events, each caused by the one before, is one trace with a span for each; handling one
// of them twice gives the same span.
func TestTraceContinues(t *testing.T) {
	parent := events.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", State: "vendor=x"}
	spans := map[string]bool{"00f067aa0ba902b7": true}
	for i := range 50 {
		e := events.WithTrace(traced(t, fmt.Sprint("event-", i)), parent)
		got := events.TraceOf(e)
		trace, span, flags := split(t, got.Parent)
		if trace != "4bf92f3577b34da6a3ce929d0e0e4736" || flags != "00" || got.State != "vendor=x" {
			t.Fatalf("got %+v, want the parent's trace, flags and state", got)
		}
		if spans[span] {
			t.Fatalf("span %s is not new", span)
		}
		spans[span] = true
		if again := events.TraceOf(events.WithTrace(traced(t, fmt.Sprint("event-", i)), parent)); again != got {
			t.Fatalf("got %+v the second time, %+v the first", again, got)
		}
		parent = got
	}
}

func TestTraceBegins(t *testing.T) {
	for _, parent := range []string{"", "garbage", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x"} {
		got := events.TraceOf(events.WithTrace(traced(t, "a"), events.Trace{Parent: parent, State: "vendor=x"}))
		split(t, got.Parent)
		if got.State != "" {
			t.Errorf("parent %q: got state %q of a trace that is not continued", parent, got.State)
		}
		if want := events.TraceOf(traced(t, "a")); got != want {
			t.Errorf("parent %q: got %+v, want %+v as for any copy of the event", parent, got, want)
		}
		if other := events.TraceOf(traced(t, "b")); other == got {
			t.Error("two events, one trace")
		}
	}
}

func TestTraceOfMalformed(t *testing.T) {
	e := traced(t, "a")
	e.SetExtension("traceparent", "garbage")
	e.SetExtension("tracestate", "vendor=x")
	got := events.TraceOf(e)
	split(t, got.Parent)
	if got.State != "" {
		t.Errorf("got state %q beside a malformed parent", got.State)
	}
}

func TestWithTraceLeavesItsArgumentAlone(t *testing.T) {
	e := traced(t, "a")
	events.WithTrace(e, events.Trace{})
	if ext := e.Extensions(); len(ext) > 0 {
		t.Errorf("got extensions %v", ext)
	}
}
