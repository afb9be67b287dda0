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

// Yes answers the question that supervisor i is at, and runs it to its end.
func (u *Setup) Yes(i int) {
	u.s = u.x.step(u.s, i, ok, 1)
	u.run(i, "")
}

// Mute takes the bus from the supervisors that are still to come.
func (u *Setup) Mute() { u.x.scenario.Mute = true }

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
func started(u *Setup) { u.Start(0, 0, questionLeave) }

// handedOver lets p1 hand over after its first checkpoint. The event is on the bus.
func handedOver(u *Setup) {
	started(u)
	u.Yes(0)
}

// about is a notice about a machine.
func about(on events.Node, kind events.Kind, cancelled bool) events.Event {
	deadline := t0.Add(2 * time.Minute)
	n := events.Notice{Provider: on.Provider, Instance: on.Instance, Kind: kind, Deadline: &deadline, Cancelled: cancelled}
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
	// Two people type the command of a job that does not exist.
	{Name: "birth", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 1,
		Bounds: Bounds{types: 2, crashes: 1, watches: 1, ambiguous: 1},
		Deep:   Bounds{expires: 1, crashes: 1}},
	// The same person types it again after a crash.
	{Name: "birth alone", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 1, Resumers: 1,
		Bounds: Bounds{types: 2, crashes: 1, watches: 1, expires: 1, ambiguous: 1},
		Deep:   Bounds{crashes: 1, watches: 1}},
	// A reservation: claimed, lost, passed over, and claimed again by a restart in place.
	{Name: "submitted", Restarter: handlers.RestarterReprieve, Steps: 0, Trainers: 3, Resumers: 0,
		Bounds: Bounds{crashes: 1, expires: 1, restarts: 1, watches: 1},
		Deep:   Bounds{watches: 1, ambiguous: 1}, Prelude: (*Setup).Submit},
	// One interruption, delivered to two resume handlers at once.
	{Name: "two resume handlers", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 2,
		Bounds:  Bounds{crashes: 1, doubles: 1, ambiguous: 1, loses: 1},
		Deep:    Bounds{watches: 1, expires: 1},
		Prelude: handedOver},
	// The watch pass sees what a slow resume handler is about to write.
	{Name: "watch before the record", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 1,
		Bounds:  Bounds{expires: 1, watches: 1, crashes: 1, loses: 1},
		Deep:    Bounds{ambiguous: 1},
		Prelude: func(u *Setup) { handedOver(u); u.Mute() }},
	// A slow supervisor commits and ends while watch declares it dead and others go on.
	{Name: "takeover", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 1, Mute: true,
		Bounds: Bounds{expires: 1, watches: 1, crashes: 1},
		Deep:   Bounds{ambiguous: 1}, Prelude: func(u *Setup) { u.Start(0, 0, "create jobs/j/checkpoints/1-1/manifest.json") }},
	// The launched process is started again with its old attempt in the environment.
	{Name: "restarted in place", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 3,
		Bounds:  Bounds{crashes: 1, restarts: 1, expires: 1, watches: 2},
		Deep:    Bounds{ambiguous: 1},
		Prelude: func(u *Setup) { handedOver(u); u.Mute() }},
	// No launcher: two more supervisors come while the first may be alive.
	{Name: "in place", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 3,
		Bounds: Bounds{crashes: 1, expires: 1, types: 2},
		Deep:   Bounds{expires: 1, ambiguous: 1}, Prelude: started},
	// The same, and writes whose outcome is unknown.
	{Name: "in place with doubt", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 2,
		Bounds: Bounds{crashes: 1, expires: 1, types: 1, ambiguous: 1},
		Deep:   Bounds{crashes: 1, expires: 1, away: 1}, Prelude: started},
	// The newest checkpoint does not verify for one of three, and for the next it does.
	{Name: "branches", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 3,
		Bounds: Bounds{expires: 2, types: 2, rots: 1},
		Deep:   Bounds{crashes: 1, away: 1}, Prelude: started},
	// A commit is cut off behind its manifest, the next one before its record.
	{Name: "adoption", Restarter: handlers.RestarterNone, Steps: 3, Trainers: 2,
		Bounds: Bounds{expires: 1, types: 1, rots: 1, away: 1, crashes: 1},
		Deep:   Bounds{ambiguous: 1}, Prelude: started},
	// A notice for a machine that the job has left.
	{Name: "late notice", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 2, Notices: []events.Event{about(node(0), events.KindTerminate, false)}, Mute: true,
		Bounds: Bounds{expires: 1, types: 1},
		Deep:   Bounds{crashes: 1, doubles: 1}, Prelude: started},
	// A machine outlives its notice, or hears of another.
	{Name: "outlived notice", Restarter: handlers.RestarterNone, Steps: 3, Trainers: 2, Notices: []events.Event{about(node(0), events.KindTerminate, false)}, Mute: true,
		Bounds: Bounds{hours: 1, leaves: 1},
		Deep:   Bounds{types: 1, ambiguous: 1}, Prelude: started},
	// Failures are paused over, then resumed.
	{Name: "failing child", Restarter: handlers.RestarterReprieve, Steps: 1, Trainers: 2, Resumers: 1,
		Bounds:  Bounds{fails: 1, watches: 1, hours: 1, expires: 1},
		Deep:    Bounds{ambiguous: 1, crashes: 1},
		Prelude: func(u *Setup) { u.Start(0, 0, questionFail); u.Yes(0); u.Mute() }},
	// A notice, its withdrawal and the end of the machine, in any order.
	{Name: "gone and withdrawn", Restarter: handlers.RestarterNone, Steps: 1, Trainers: 2, Mute: true,
		Notices: []events.Event{about(node(0), events.KindTerminate, false), about(node(0), events.KindTerminate, true), about(node(0), events.KindGone, false)},
		Bounds:  Bounds{types: 1},
		Deep:    Bounds{crashes: 1, expires: 1, doubles: 1}, Prelude: started},
	// Somebody cancels and retries under a living supervisor.
	{Name: "person", Restarter: handlers.RestarterNone, Steps: 2, Trainers: 2,
		Bounds: Bounds{types: 1, cancels: 1, retries: 1, crashes: 1, expires: 1},
		Deep:   Bounds{ambiguous: 1, watches: 1}, Prelude: started},
	// The same with reservations.
	{Name: "person and launcher", Restarter: handlers.RestarterReprieve, Steps: 0, Trainers: 2, Mute: true,
		Bounds: Bounds{cancels: 1, retries: 1, watches: 1, expires: 1},
		Deep:   Bounds{crashes: 1, ambiguous: 1}, Prelude: (*Setup).Submit},
}
