// Package notice turns what clouds send about a machine into events: one file per source, one small
// parser per kind. What it does not know is no error and no event; what it knows but cannot read is
// ErrMalformed. It does no I/O.
package notice

import (
	"errors"
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// ErrMalformed: the payload claims to be of a known source and kind, but cannot be read as such.
var ErrMalformed = errors.New("malformed notice")

// Parse reads one native payload of source: auto, or aws (EventBridge). Notices without a deadline of their own
// get one from their time, or from at where they carry none. Unknown input gives no events. ErrMalformed.
func Parse(source string, raw []byte, at time.Time) ([]events.Event, error) {
	switch source {
	case "auto", "aws":
		notices, err := parseEventBridge(raw, at)
		if err != nil {
			return nil, err
		}
		out := make([]events.Event, 0, len(notices))
		for _, n := range notices {
			e, err := Event(n.Notice, n.at)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
			}
			out = append(out, e)
		}
		return out, nil
	case "gcp", "azure", "kubernetes":
		return nil, fmt.Errorf("%w: source %q: this version reads aws", ErrMalformed, source)
	}
	return nil, fmt.Errorf("%w: source %q: use auto or aws", ErrMalformed, source)
}

// Event is the CloudEvent that says n, which was given out at the time at.
func Event(n events.Notice, at time.Time) (events.Event, error) {
	typ := events.TypeNodeNotice
	if n.Cancelled {
		typ = events.TypeNodeNoticeCancelled
	}
	return events.New(typ, "/"+n.Provider, n.Node().String(), events.NoticeID(n), at, n)
}
