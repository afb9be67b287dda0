package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

// fault is something that happens to processes, or that somebody from outside does. A scenario
// says how often each may happen in one run.
type Fault uint8

type fault = Fault

const (
	crashes   fault = iota // a process dies between two operations
	ambiguous              // a write takes effect, its writer sees an error
	away                   // an operation has no effect and answers "unavailable"
	expires                // a live object gets old, whether its process lives or not
	loses                  // an event
	doubles                // an event is delivered again while it is being handled
	rots                   // a checkpoint does not verify
	leaves                 // a machine announces that it goes away, and is heard on the node
	restarts               // a supervisor that ended is started again in place, with its old environment
	types                  // somebody types the command again
	cancels
	retries
	watches // passes
	faults
)

// Names of the faults, for Scenario.Bounds.
const (
	Crashes, Ambiguous, Away, Expires, Loses, Doubles, Rots, Leaves, Restarts, Types, Cancels, Retries, Watches = crashes, ambiguous, away, expires, loses, doubles, rots, leaves, restarts, types, cancels, retries, watches
)

type slotKind uint8

const (
	resumer slotKind = iota
	noticer
	watcher
	trainer
	human
)

type slot struct {
	kind slotKind
	id   string
}

// Bounds says how often each fault may happen.
type Bounds map[Fault]int

// Scenario is a bounded world.
type Scenario struct {
	Name      string
	Restarter handlers.Restarter
	Steps     int64 // that the training takes
	Resumers  int
	Trainers  int
	Notices   []events.Event // on the bus from the start
	Bounds    Bounds
	// Prelude prepares the first state.
	Prelude func(*Setup)
}

// Report says what was explored.
type Report struct {
	States, Depth, Steps, Moments, Endings int
	Took                                   time.Duration
	Complete                               bool
	Violation                              string // with the schedule that leads to it
}

func (r Report) String() string {
	return fmt.Sprintf("%d states, %d steps, depth %d, %d endings, %d moments of processes, %s", r.States, r.Steps, r.Depth, r.Endings, r.Moments, r.Took.Round(time.Millisecond))
}

type explorer struct {
	scenario Scenario
	catalog  *catalog.Catalog
	slots    []slot
	clock    func() time.Time

	port     *port // of the process at work
	roots    map[string]*root
	hot      []*root
	moments  int
	contents map[uint64]*content
	eventIDs map[string]uint32
	events   []events.Event

	visited map[uint64]struct{}
	endings map[uint64]struct{} // worlds from which the job is known to end
	trace   []string
	report  Report
	limit   int
}

func newExplorer(sc Scenario) (*explorer, *state) {
	x := &explorer{scenario: sc, roots: map[string]*root{}, contents: map[uint64]*content{}, eventIDs: map[string]uint32{},
		visited: map[uint64]struct{}{}, endings: map[uint64]struct{}{}, port: &port{}}
	x.catalog = &catalog.Catalog{Store: remote{x}, Now: remote{x}.now}
	add := func(n int, kind slotKind, name string) {
		for i := range n {
			x.slots = append(x.slots, slot{kind: kind, id: fmt.Sprint(name, i+1)})
		}
	}
	add(sc.Trainers, trainer, "p")
	add(sc.Resumers, resumer, "resume")
	add(min(len(sc.Notices), 1), noticer, "notice")
	add(1, watcher, "watch")
	add(1, human, "person")
	add(1, trainer, "f") // the supervisors of the fair continuation, one after the other
	s := &state{store: mem.New(func() time.Time { return t0 }), processes: make([]process, len(x.slots))}
	for f, n := range sc.Bounds {
		s.left[f] = uint8(n)
	}
	for _, e := range sc.Notices {
		x.post(s, e)
	}
	return x, s
}

func (x *explorer) name(i int) string { return x.slots[i].id }

func (x *explorer) stageOf(s *state, i int) *stage { return &s.processes[i].at.root.stage }

// slotFor returns a slot that consumes events of a type, -1 if none does.
func (x *explorer) slotFor(typ string) int {
	kind := map[string]slotKind{events.TypeJobInterrupted: resumer, events.TypeNodeNotice: noticer, events.TypeNodeNoticeCancelled: noticer}
	want, wanted := kind[typ]
	if !wanted {
		return -1
	}
	return slices.IndexFunc(x.slots, func(s slot) bool { return s.kind == want })
}

// Explore goes through everything that can happen in sc, until limit states if that is not 0, and
// stops at the first violation.
func Explore(sc Scenario, limit int) (report Report) {
	x, s := newExplorer(sc)
	x.limit = limit
	started := time.Now()
	defer func() {
		report = x.report
		report.States, report.Moments, report.Took = len(x.visited), x.moments, time.Since(started)
		for _, r := range x.hot {
			if r.hot != nil {
				r.hot.stop()
			}
		}
		if p := recover(); p != nil {
			v, is := p.(violation)
			if !is {
				panic(p)
			}
			report.Violation = v.what + "\n  " + strings.Join(x.trace, "\n  ")
		}
	}()
	if sc.Prelude != nil {
		sc.Prelude(&Setup{x: x, s: s})
	}
	x.report.Complete = true
	x.visit(s)
	return x.report
}

func (x *explorer) log(format string, args ...any) {
	x.trace = append(x.trace, fmt.Sprintf(format, args...))
}

func (x *explorer) visit(s *state) {
	h := s.hash()
	if _, seen := x.visited[h]; seen {
		return
	}
	if x.limit > 0 && len(x.visited) >= x.limit {
		x.report.Complete = false
		return
	}
	x.visited[h] = struct{}{}
	depth := len(x.trace)
	x.report.Depth = max(x.report.Depth, depth)
	if s.quiet() {
		x.fair(s)
		x.trace = x.trace[:depth]
	}
	x.branch(s, func(n *state) {
		x.report.Steps++
		x.visit(n)
		x.trace = x.trace[:depth]
	})
}

// branch makes every state that can follow s.
func (x *explorer) branch(s *state, follow func(*state)) {
	for i, p := range s.processes {
		if p.life != alive {
			continue
		}
		o := p.at.op
		follow(x.step(s, i, ok, 0))
		if o.verb == choose {
			if f := questionOf(o); s.left[f] > 0 {
				n := s.clone()
				n.left[f]--
				follow(x.step(n, i, ok, 1))
			}
			continue
		}
		if o.verb == pause {
			continue
		}
		if s.left[ambiguous] > 0 && o.writes() {
			n := s.clone()
			n.left[ambiguous]--
			if n = x.step(n, i, unavailable, 1); n != nil {
				follow(n)
			}
		}
		if s.left[away] > 0 {
			n := s.clone()
			n.left[away]--
			follow(x.step(n, i, unavailable, 0))
		}
		if s.left[crashes] > 0 && o.writes() {
			follow(x.crash(s, i))
		}
	}
	x.outside(s, follow)
}

func questionOf(o op) fault {
	if strings.HasSuffix(o.key, "verify?") {
		return rots
	}
	return leaves
}

// step lets process i do its next operation, and what follows from that which nobody else can see.
// With code unavailable it sees that, and number says whether the operation took effect; nil if
// it would have failed anyhow. For a question number is the answer.
func (x *explorer) step(s *state, i int, see code, number int) *state {
	n := s.clone()
	o := n.processes[i].at.op
	var res result
	switch {
	case o.verb == choose:
		res = result{number: number, epoch: n.epoch}
		x.log("%s: %s -> %s", x.name(i), o, [...]string{"ordinary", "yes, the rare case"}[number])
	case see == unavailable && number == 0:
		res = result{code: unavailable, epoch: n.epoch}
		x.log("%s: %s -> UNAVAILABLE, without effect", x.name(i), o)
	default:
		x.log("%s: %s", x.name(i), o)
		res = x.do(n, i, o)
		if see == unavailable {
			if res.code != ok {
				x.trace = x.trace[:len(x.trace)-1]
				return nil
			}
			res = result{code: unavailable, epoch: n.epoch}
			x.trace[len(x.trace)-1] += " -> UNAVAILABLE, but it took effect"
		} else {
			x.trace[len(x.trace)-1] += " -> " + res.String()
		}
	}
	x.move(n, i, res)
	for n.processes[i].life == alive && x.local(n, i) {
		o := n.processes[i].at.op
		x.move(n, i, x.do(n, i, o))
	}
	return n
}

// move gives process i the result of its operation.
func (x *explorer) move(s *state, i int, res result) {
	s.processes[i].at = x.after(s.processes[i].at, res)
	x.turn(s, i)
}

// turn takes process i into its next stage, or to its end.
func (x *explorer) turn(s *state, i int) {
	for p := &s.processes[i]; p.at.over; {
		m := p.at
		x.checkOutcome(s, i, m)
		if m.out.what != "" {
			x.log("%s: %s", x.name(i), m.out.what)
		}
		if m.out.next == nil {
			x.end(s, i, m.out.nak, exited)
			return
		}
		p.at = x.begin(*m.out.next).first
	}
}

// end takes process i out of the world.
func (x *explorer) end(s *state, i int, nak bool, how life) {
	p := &s.processes[i]
	p.at = nil
	if p.event != 0 {
		s.settle(p.event, !nak)
		p.event = 0
	}
	p.life = unborn
	if x.slots[i].kind == trainer {
		p.life = how
		if p.given > 0 && p.given < len(s.launched) {
			s.launched[p.given] = endedIt
		}
	}
}

func (x *explorer) crash(s *state, i int) *state {
	n := s.clone()
	n.left[crashes]--
	x.log("%s: CRASHES before %s", x.name(i), n.processes[i].at.op)
	x.end(n, i, true, killed)
	return n
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

// born starts stage first in slot i.
func (x *explorer) born(s *state, i int, first *stage) {
	s.processes[i].life = alive
	s.processes[i].at = x.begin(*first).first
	x.turn(s, i)
}
