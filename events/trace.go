package events

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// W3C trace context travels in the extension attributes of CloudEvents' distributed tracing
// extension. Source: W3C Trace Context (Recommendation, 2021), CloudEvents distributed-tracing.md.
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

var traceParentForm = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// Trace is the trace context of one event. The zero value is none.
type Trace struct {
	Parent string `json:"traceparent,omitempty"` // 00-<trace id>-<span id>-<flags>
	State  string `json:"tracestate,omitempty"`
}

// TraceOf returns the trace context that e carries; where it carries none (or a malformed one),
// one that is derived from its id, so that all copies of an event begin the same trace.
func TraceOf(e Event) Trace {
	ext := e.Extensions()
	if parent, ok := ext[traceParent].(string); ok && traceParentForm.MatchString(parent) {
		state, _ := ext[traceState].(string)
		return Trace{Parent: parent, State: state}
	}
	sum := sha256.Sum256([]byte(e.ID()))
	return Trace{Parent: "00-" + hex.EncodeToString(sum[:16]) + "-" + hex.EncodeToString(sum[16:24]) + "-01"}
}

// WithTrace makes e a child span of the event that carried parent: the same trace, a span id of
// its own that is derived from e's id. Without a parent, e begins a trace.
func WithTrace(e Event, parent Trace) Event {
	e = e.Clone()
	if !traceParentForm.MatchString(parent.Parent) {
		e.SetExtension(traceParent, TraceOf(e).Parent)
		return e
	}
	sum := sha256.Sum256([]byte(e.ID()))
	e.SetExtension(traceParent, parent.Parent[:36]+hex.EncodeToString(sum[:8])+parent.Parent[52:])
	if parent.State != "" {
		e.SetExtension(traceState, parent.State)
	}
	return e
}
