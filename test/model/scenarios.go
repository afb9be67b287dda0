package model

import (
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// Setup prepares the first state of a scenario, with processes that nothing happens to.
type Setup struct {
	x *explorer
	s *state
}

// Submit makes a job that is launched and not started.
func (u *Setup) Submit() {
	i := u.x.idle(u.s, human)
	u.x.born(u.s, i, u.x.submit())
	u.run(i, "")
}

// Start starts supervisor i (from 0) with an attempt given (0: none), and runs it up to its first
// operation that begins with until; to its end if that is empty.
func (u *Setup) Start(i, given int, until string) {
	u.x.supervise(u.s, i, given, node(i), "")
	u.run(i, until)
}

// Go runs supervisor i up to its next operation that begins with until.
func (u *Setup) Go(i int, until string) { u.run(i, until) }

// Leave answers yes to the question that supervisor i is at, and runs it to its end.
func (u *Setup) Leave(i int) {
	u.s = u.x.step(u.s, i, ok, 1)
	u.run(i, "")
}

// Mute takes the bus from the supervisors that are still to come.
func (u *Setup) Mute() { u.x.scenario.Mute = true }

// Kill ends supervisor i where it is.
func (u *Setup) Kill(i int) {
	u.s.left[crashes]++
	u.s = u.x.crash(u.s, i)
}

// Expire makes the live object of an attempt old.
func (u *Setup) Expire(attempt int) {
	i, _ := u.s.find(liveKey(attempt))
	u.s.objects[i] = u.s.objects[i].aged()
}

func (u *Setup) run(i int, until string) {
	for first := true; u.s.processes[i].life == alive; first = false {
		if !first && until != "" && strings.HasPrefix(u.s.processes[i].at.op.String(), until) {
			return
		}
		u.s = u.x.step(u.s, i, ok, 0)
	}
	if until != "" {
		panic("supervisor " + u.x.name(i) + " never came to " + until)
	}
}

// started brings p1 to the first heartbeat after its first checkpoint.
func started(u *Setup) { u.Start(0, 0, "does the machine go away?") }

// handedOver lets p1 hand over after its first checkpoint. The event is on the bus.
func handedOver(u *Setup) {
	started(u)
	u.Leave(0)
}

// about is a notice that machine i (from 0) goes away.
func about(i int, kind events.Kind, cancelled bool) events.Event {
	deadline := t0.Add(2 * time.Minute)
	n := events.Notice{Provider: node(i).Provider, Instance: node(i).Instance, Kind: kind, Deadline: &deadline, Cancelled: cancelled}
	typ := events.TypeNodeNotice
	if cancelled {
		typ = events.TypeNodeNoticeCancelled
	}
	e, err := events.New(typ, "/test", n.Instance, events.NoticeID(n), t0, n)
	if err != nil {
		panic(err)
	}
	return e
}

// Scenarios are the bounded worlds that are explored.
var Scenarios = []Scenario{
	{Name: "birth", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 1,
		Bounds: Bounds{Types: 2, Crashes: 1, Watches: 1, Ambiguous: 1},
		Deep:   Bounds{Expires: 1, Crashes: 1}},
	{Name: "birth alone", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 1, Resumers: 1,
		Bounds: Bounds{Types: 2, Crashes: 1, Watches: 1, Expires: 1, Ambiguous: 1},
		Deep:   Bounds{Crashes: 1, Watches: 1}},
	{Name: "submitted", Restarter: handlers.RestarterReprieve, Steps: 0, Trainers: 3, Resumers: 0,
		Bounds: Bounds{Crashes: 1, Expires: 1, Restarts: 1, Watches: 1},
		Deep:   Bounds{Watches: 1, Ambiguous: 1}, Prelude: (*Setup).Submit},
	{Name: "two resume handlers", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 2,
		Bounds:  Bounds{Crashes: 1, Doubles: 1, Ambiguous: 1},
		Deep:    Bounds{Loses: 1, Watches: 1, Expires: 1},
		Prelude: handedOver},
	{Name: "watch before the record", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 1,
		Bounds:  Bounds{Expires: 1, Watches: 1, Crashes: 1},
		Deep:    Bounds{Loses: 1, Ambiguous: 1},
		Prelude: func(u *Setup) { handedOver(u); u.Mute() }},
	{Name: "takeover", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 1, Mute: true,
		Bounds: Bounds{Expires: 1, Watches: 1},
		Deep:   Bounds{Crashes: 1, Ambiguous: 1}, Prelude: func(u *Setup) { u.Start(0, 0, "create jobs/j/checkpoints/1-1/manifest.json") }},
	{Name: "restarted in place", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 3, Resumers: 1,
		Bounds:  Bounds{Crashes: 1, Restarts: 1, Expires: 1, Watches: 1},
		Deep:    Bounds{Ambiguous: 1},
		Prelude: func(u *Setup) { handedOver(u); u.Mute() }},
	{Name: "in place", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 3,
		Bounds: Bounds{Crashes: 1, Expires: 1, Types: 2},
		Deep:   Bounds{Expires: 1, Ambiguous: 1}, Prelude: started},
	{Name: "in place with doubt", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 2,
		Bounds: Bounds{Crashes: 1, Expires: 1, Types: 1, Ambiguous: 1},
		Deep:   Bounds{Crashes: 1, Expires: 1, Away: 1}, Prelude: started},
	{Name: "branches", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 3,
		Bounds: Bounds{Expires: 2, Types: 2, Rots: 1},
		Deep:   Bounds{Crashes: 1, Away: 1}, Prelude: started},
	{Name: "adoption", Restarter: handlers.RestarterNone, Steps: 3, Trainers: 2,
		Bounds: Bounds{Expires: 1, Types: 1, Rots: 1, Away: 1, Crashes: 1},
		Deep:   Bounds{Ambiguous: 1}, Prelude: started},
	{Name: "late notice", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 2, Notices: []events.Event{about(0, events.KindTerminate, false)}, Mute: true,
		Bounds: Bounds{Expires: 1, Types: 1},
		Deep:   Bounds{Crashes: 1, Doubles: 1}, Prelude: started},
	{Name: "gone and withdrawn", Restarter: handlers.RestarterNone, Steps: 1, Trainers: 2, Mute: true,
		Notices: []events.Event{about(0, events.KindTerminate, false), about(0, events.KindTerminate, true), about(0, events.KindGone, false)},
		Bounds:  Bounds{Types: 1},
		Deep:    Bounds{Crashes: 1, Expires: 1, Doubles: 1}, Prelude: started},
	{Name: "person", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 2,
		Bounds: Bounds{Types: 1, Cancels: 1, Retries: 1, Crashes: 1, Expires: 1},
		Deep:   Bounds{Ambiguous: 1, Watches: 1}, Prelude: started},
	{Name: "person and launcher", Restarter: handlers.RestarterReprieve, Steps: 0, Trainers: 2, Mute: true,
		Bounds: Bounds{Cancels: 1, Retries: 1, Watches: 1, Expires: 1},
		Deep:   Bounds{Crashes: 1, Ambiguous: 1}, Prelude: (*Setup).Submit},
}
