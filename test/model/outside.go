package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/reprieve-dev/reprieve/events"
)

// outside makes every state in which something happens to s that is not a step of a process.
func (x *explorer) outside(s *state, follow func(*state)) {
	for _, l := range s.bus {
		e := x.events[l.event-1]
		if i := x.idle(s, x.slots[x.slotFor(e.Type())].kind); i >= 0 && (!l.flight || s.left[doubles] > 0) {
			n := s.clone()
			how := ""
			if l.flight {
				n.left[doubles]--
				how = " again"
			}
			x.log(i, "is delivered %s%s", letterhead{e}, how)
			x.deliver(n, i, l.event)
			follow(n)
		}
		if !l.flight && s.left[loses] > 0 {
			n := s.clone()
			n.left[loses]--
			n.settle(l.event, true)
			x.log(-1, "bus: LOSES %s", letterhead{e})
			follow(n)
		}
	}
	if i := x.idle(s, watcher); i >= 0 && s.left[watches] > 0 {
		n := s.clone()
		n.left[watches]--
		x.log(-1, "watch: begins a pass")
		x.born(n, i, x.watch())
		follow(n)
	}
	for i, o := range s.objects {
		if s.left[expires] > 0 && !o.old && strings.HasPrefix(o.key, "live/") {
			n := s.clone()
			n.left[expires]--
			n.objects[i] = o.aged()
			x.log(-1, "clock: %s gets OLD", o.key)
			follow(n)
		}
	}
	if s.left[hours] > 0 {
		n := s.clone()
		n.left[hours]--
		n.epoch++
		x.log(-1, "clock: an HOUR passes")
		follow(n)
	}
	x.births(s, follow)
	for _, will := range []fault{cancels, retries} {
		if i := x.idle(s, human); i >= 0 && s.left[will] > 0 {
			n := s.clone()
			n.left[will]--
			x.log(-1, "person: %s", [...]string{"CANCELS", "RETRIES"}[will-cancels])
			x.born(n, i, x.person(will))
			follow(n)
		}
	}
}

// births starts supervisors.
func (x *explorer) births(s *state, follow func(*state)) {
	i := slices.IndexFunc(s.processes[:x.scenario.Trainers], func(p process) bool { return p.life == unborn })
	if i < 0 {
		return
	}
	for attempt, l := range s.launched {
		if l == launchedIt {
			n := s.clone()
			x.log(-1, "platform: starts j-%d as %s", attempt, x.name(i))
			x.supervise(n, i, attempt, node(i), "")
			follow(n)
		}
	}
	if s.left[types] > 0 {
		n := s.clone()
		n.left[types]--
		x.log(-1, "person: types the command again, as %s", x.name(i))
		x.supervise(n, i, 0, node(i), "")
		follow(n)
	}
	for before, p := range s.processes[:x.scenario.Trainers] {
		if (p.life == killed || p.life == exited) && s.left[restarts] > 0 {
			n := s.clone()
			n.left[restarts]--
			given := max(p.given, p.held)
			x.log(-1, "platform: starts %s in place of %s, attempt %d in its environment", x.name(i), x.name(before), given)
			x.supervise(n, i, given, node(before), x.name(before))
			follow(n)
		}
	}
}

func node(i int) events.Node { return events.Node{Provider: "aws", Instance: fmt.Sprint("i-", i+1)} }

// supervise starts a supervisor in slot i. It waits twice where somebody has to wait.
func (x *explorer) supervise(s *state, i, given int, on events.Node, dead string) {
	s.processes[i].given, s.processes[i].held = given, 0
	if given > 0 && given < len(s.launched) {
		s.launched[given] = startedIt
	}
	u := &supervisor{x: x, id: x.name(i), given: given, node: on, dead: dead}
	x.born(s, i, u.start(1))
}

func (x *explorer) deliver(s *state, i int, event uint32) {
	for at := range s.bus {
		if s.bus[at].event == event {
			s.bus[at].flight = true
		}
	}
	s.processes[i].event = event
	x.born(s, i, x.consumer(i, x.events[event-1]))
}

// idle returns the first handler of a kind that has nothing to do, -1 if there is none.
func (x *explorer) idle(s *state, kind slotKind) int {
	for i, p := range s.processes {
		if x.slots[i].kind == kind && p.life == unborn {
			return i
		}
	}
	return -1
}

// letterhead says what an event is about.
type letterhead struct{ e events.Event }

func (l letterhead) String() string {
	e := l.e
	text := strings.TrimPrefix(e.Type(), "dev.reprieve.")
	if data, err := events.Decode[events.Job](e); err == nil && data.Attempt > 0 {
		text += fmt.Sprintf(" #%d of attempt %d", data.Seq, data.Attempt)
	}
	if n, err := events.Decode[events.Notice](e); err == nil && n.Instance != "" {
		text += " for " + n.Instance
	}
	return text
}
