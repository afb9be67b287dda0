package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/reprieve-dev/reprieve/events"
)

// commutes reports whether nobody else can see, or change the outcome of, what process i does next.
func (x *explorer) commutes(s *state, i int) bool {
	o := &s.processes[i].at.op
	switch {
	case o.verb == choose:
		return true
	case o.verb == publish: // what nobody consumes
		return !slices.ContainsFunc(o.events, func(e events.Event) bool { return x.slotFor(e.Type()) >= 0 })
	case strings.HasPrefix(o.key, "outbox/"):
		return !x.mayAct(s, i, watcher)
	case strings.HasPrefix(o.key, "jobs/j/checkpoints/"):
		return !x.mayAct(s, i, trainer)
	}
	return false
}

// mayAct reports whether anybody of a kind but process i is at work, or ever will be.
func (x *explorer) mayAct(s *state, i int, kind slotKind) bool {
	for other, p := range s.processes[:len(s.processes)-1] {
		if other == i || x.slots[other].kind != kind {
			continue
		}
		if p.life == alive || p.life == unborn && (kind != watcher || s.left[watches] > 0) {
			return true
		}
	}
	return false
}

// local reports whether the next operation of process i commutes with whatever others do: its key
// is no one else's business, or what is there never changes. Then nothing is to be gained from
// letting others go first.
func (x *explorer) local(s *state, i int) bool {
	o := s.processes[i].at.op
	written := strings.HasSuffix(o.key, "/manifest.json") || strings.Contains(o.key, "/node-") || strings.Contains(o.key, "/data/")
	switch o.verb {
	case put:
		return strings.HasPrefix(o.key, "expiry/") || strings.HasSuffix(o.key, "/state.json") || strings.Contains(o.key, "/data/")
	case get, stat:
		own := strings.HasPrefix(o.key, fmt.Sprintf("jobs/j/checkpoints/%d-", s.processes[i].held)) && strings.Contains(o.key, "/node-")
		return written && s.object(o.key) != nil || own
	}
	return false
}
