package model

import (
	"fmt"
	"strings"

	"github.com/reprieve-dev/reprieve/handlers"
)

// fairRounds bounds the fair continuation. Each passes a reservation over or makes an attempt.
const fairRounds = 12

// fair goes on from a quiet state without faults: time passes, the watch pass comes by, events are
// delivered, what is launched starts, and the person who has to type the command does. The job has
// to end, and everything has to be told.
func (x *explorer) fair(s *state) {
	if _, known := x.endings[s.world()]; known {
		return
	}
	x.report.Endings++
	x.log(-1, "---- from here on without faults")
	n := s.clone()
	var path []uint64
	for round := 0; ; round++ {
		w := n.world()
		if _, known := x.endings[w]; known {
			break
		}
		path = append(path, w)
		j := n.record()
		ended := j != nil && j.State.Terminal() && len(n.untold) == 0 && len(n.bus) == 0 && x.clean(n)
		if ended {
			break
		}
		if round == fairRounds {
			if j == nil || !j.State.Terminal() {
				violate("the job is stuck")
			}
			for _, e := range n.untold {
				violate("the event %s of a transition was never published", x.eventName(e))
			}
			violate("the job has ended, and traces are left: %s", x.traces(n))
		}
		x.round(n, round)
	}
	for _, w := range path {
		x.endings[w] = struct{}{}
	}
}

func (x *explorer) round(s *state, round int) {
	s.epoch++
	run := func(i int) {
		for steps := 0; s.processes[i].life == alive; steps++ {
			if steps > 5000 {
				violate("%s does not come to an end", x.name(i))
			}
			*s = *x.step(s, i, ok, 0)
		}
	}
	for len(s.bus) > 0 {
		e := s.bus[0].event
		i := x.slotFor(x.events[e-1].Type())
		x.log(i, "is delivered %s", letterhead{x.events[e-1]})
		x.deliver(s, i, e)
		run(i)
	}
	for i, o := range s.objects {
		if strings.HasPrefix(o.key, "live/") {
			s.objects[i] = o.aged()
		}
	}
	w := x.idle(s, watcher)
	x.log(-1, "watch: begins a pass")
	x.born(s, w, x.watch())
	run(w)
	f := len(x.slots) - 1
	begin := func(given int) {
		x.slots[f].id = fmt.Sprint("f", round+1, "-", given)
		s.processes[f] = process{}
		x.log(-1, "platform: starts %s with attempt %d", x.slots[f].id, given)
		x.supervise(s, f, given, node(100+round), "")
		run(f)
		s.processes[f] = process{}
	}
	for attempt := range s.launched {
		if s.launched[attempt] == launchedIt {
			begin(attempt)
		}
	}
	j := s.record()
	if j == nil || x.scenario.Restarter != handlers.RestarterReprieve && !j.State.Terminal() {
		begin(0)
	}
}

// clean reports whether an ended job has left nothing for the watch pass to look at, but for what
// somebody put who died before the write that it was for.
func (x *explorer) clean(s *state) bool { return x.traces(s) == "" }

func (x *explorer) traces(s *state) string {
	j, left := s.record(), []string{}
	for _, o := range s.objects {
		tail := o.key[strings.LastIndex(o.key, "/")+1:]
		if strings.HasPrefix(o.key, "live/") && number(tail) <= j.Attempt || strings.HasPrefix(o.key, "outbox/") && number(tail) <= j.Seq {
			left = append(left, o.key)
		}
	}
	return strings.Join(left, " ")
}

func (x *explorer) eventName(n uint32) string {
	if e := x.events[n-1]; e.Context != nil {
		return letterhead{e}.String()
	}
	for id, number := range x.eventIDs {
		if number == n {
			return id
		}
	}
	return "?"
}
