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
type fault uint8

const (
	crashes   fault = iota // a process dies between two operations
	ambiguous              // a write takes effect, its writer sees an error
	away                   // an operation has no effect and answers "unavailable"
	expires                // a live object gets old, whether its process lives or not
	loses                  // an event
	doubles                // an event is delivered again while it is being handled
	rots                   // a checkpoint does not verify
	leaves                 // a machine announces that it goes away, and is heard on the node
	fails                  // a child ends with 1
	hours                  // pass: every deadline and pause is over
	restarts               // a supervisor that ended is started again in place, with its old environment
	types                  // somebody types the command again
	cancels
	retries
	watches // passes
	faults
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
type Bounds map[fault]int

// Scenario is a bounded world.
type Scenario struct {
	Name      string
	Restarter handlers.Restarter
	Steps     int64 // that the training takes
	Resumers  int
	Trainers  int
	Notices   []events.Event // on the bus from the start
	Mute      bool           // supervisors have no bus: what they have to tell, others find
	Bounds    Bounds
	Deep      Bounds // on top of Bounds, where there is time
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

	port     *port // of the process at work
	roots    map[string]*root
	hot      []*root
	moments  int
	contents map[uint64]*content
	eventIDs map[string]uint32
	events   []events.Event

	visited map[uint64]uint64   // hash: budget
	more    map[uint64][]uint64 // hash: other budgets
	endings map[uint64]struct{} // worlds from which the job is known to end
	trace   []line
	report  Report
	limit   int
}

func newExplorer(sc Scenario) (*explorer, *state) {
	x := &explorer{scenario: sc, roots: map[string]*root{}, contents: map[uint64]*content{}, eventIDs: map[string]uint32{},
		visited: map[uint64]uint64{}, more: map[uint64][]uint64{}, endings: map[uint64]struct{}{}, port: &port{}}
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

var consumers = map[string]slotKind{events.TypeJobInterrupted: resumer, events.TypeNodeNotice: noticer, events.TypeNodeNoticeCancelled: noticer}

// slotFor returns a slot that consumes events of a type, -1 if none does.
func (x *explorer) slotFor(typ string) int {
	want, wanted := consumers[typ]
	if !wanted {
		return -1
	}
	return slices.IndexFunc(x.slots, func(s slot) bool { return s.kind == want })
}

// Explore goes through everything that can happen in sc, until limit states if that is not 0, and
// stops at the first violation. With deep more may go wrong in one run.
func Explore(sc Scenario, deep bool, limit int) (report Report) {
	x, s := newExplorer(sc)
	for f, n := range sc.Deep {
		if deep {
			s.left[f] += uint8(n)
		}
	}
	x.limit = limit
	started := time.Now()
	defer func() {
		report = x.report
		report.Moments, report.Took = x.moments, time.Since(started)
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
			report.Violation = v.what + x.schedule()
		}
	}()
	if sc.Prelude != nil {
		u := &Setup{x: x, s: s}
		sc.Prelude(u)
		s = u.s
	}
	x.report.Complete = true
	x.visit(s)
	return x.report
}

// line is one line of the schedule. It is put into words only when somebody has to read it.
type line struct {
	who  int // slot; -1: the text says
	did  *op
	res  result
	text string
	args []any
}

func (x *explorer) log(who int, text string, args ...any) {
	x.trace = append(x.trace, line{who: who, text: text, args: args})
}

func (x *explorer) schedule() string {
	var b strings.Builder
	for _, l := range x.trace {
		b.WriteString("\n  ")
		if l.who >= 0 {
			b.WriteString(x.name(l.who) + ": ")
		}
		switch {
		case l.did == nil:
			fmt.Fprintf(&b, l.text, l.args...)
		case l.text != "":
			b.WriteString(l.did.String() + " -> " + l.text)
		default:
			b.WriteString(l.did.String() + " -> " + l.res.String())
		}
	}
	return b.String()
}

// known reports whether a state was visited before with at least this budget, and notes the visit.
func (x *explorer) known(h, budget uint64) bool {
	had, seen := x.visited[h]
	if !seen {
		x.visited[h] = budget
		return false
	}
	if covers(had, budget) {
		return true
	}
	for _, b := range x.more[h] {
		if covers(b, budget) {
			return true
		}
	}
	x.more[h] = append(x.more[h], budget)
	return false
}

func (x *explorer) visit(s *state) {
	if x.known(s.hash(), s.budget()) {
		return
	}
	if x.report.States++; x.limit > 0 && x.report.States > x.limit {
		x.report.Complete = false
		return
	}
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

// branch makes every state that has to be looked at behind s. Where a process is at an operation
// that commutes with everything that others can do from here on, it goes first: all other orders
// lead to the same.
func (x *explorer) branch(s *state, follow func(*state)) {
	for i, p := range s.processes {
		if p.life == alive && x.commutes(s, i) {
			x.turns(s, i, follow)
			return
		}
	}
	for i, p := range s.processes {
		if p.life == alive {
			x.turns(s, i, follow)
		}
	}
	x.outside(s, follow)
}

// turns makes every state in which process i has done something, or something has happened to it.
func (x *explorer) turns(s *state, i int, follow func(*state)) {
	o := &s.processes[i].at.op
	follow(x.step(s, i, ok, 0))
	if o.verb == choose {
		if f := questionOf(*o); s.left[f] > 0 {
			n := s.clone()
			n.left[f]--
			follow(x.step(n, i, ok, 1))
		}
		return
	}
	if o.verb == pause {
		return
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

// What a process asks the world. Everything else is about rot.
const (
	questionLeave = "does the machine go away?"
	questionFail  = "does the child fail?"
)

func questionOf(o op) fault {
	switch o.key {
	case questionLeave:
		return leaves
	case questionFail:
		return fails
	}
	return rots
}

// step lets process i do its next operation, and what follows from that which nobody else can see.
// With code unavailable it sees that, and number says whether the operation took effect; nil if
// it would have failed anyhow. For a question number is the answer.
func (x *explorer) step(s *state, i int, see code, number int) *state {
	n := s.clone()
	o := &n.processes[i].at.op
	var res result
	said := ""
	switch {
	case o.verb == choose:
		res.number = number
		said = [...]string{"the ordinary answer", "THE RARE ANSWER"}[number]
	case see == unavailable && number == 0:
		res.code, said = unavailable, "UNAVAILABLE, without effect"
	default:
		at := len(x.trace)
		x.trace = append(x.trace, line{who: i, did: o, text: "?"})
		res = x.do(n, i, *o)
		x.trace = x.trace[:at]
		if see == unavailable {
			if res.code != ok {
				return nil
			}
			res, said = result{code: unavailable}, "UNAVAILABLE, but it took effect"
		}
	}
	res.epoch = n.epoch
	x.trace = append(x.trace, line{who: i, did: o, res: res, text: said})
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
			x.log(i, "%s", m.out.what)
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
	x.log(i, "CRASHES before %s", n.processes[i].at.op)
	x.end(n, i, true, killed)
	return n
}

// born starts stage first in slot i.
func (x *explorer) born(s *state, i int, first *stage) {
	s.processes[i].life = alive
	s.processes[i].at = x.begin(*first).first
	x.turn(s, i)
}
