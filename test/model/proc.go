package model

import (
	"fmt"
	"iter"
	"strings"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// verb is what an operation does. The scheduler chooses between operations: what a process does
// between two of them is one indivisible step.
type verb uint8

const (
	get verb = iota
	put
	stat
	list
	remove
	publish // events to the bus
	launch  // a name on the platform
	status  // of a launched name
	choose  // something that the world decides: 0 is the ordinary case
	pause   // waits; the scheduler decides how long
)

// op is the next operation of a process.
type op struct {
	verb   verb
	key    string // object, prefix, launch name or question
	data   *content
	absent bool   // create-only
	match  uint64 // swap: hash of the content that has to be there; 0: none
	after  string
	limit  int
	events []events.Event
	number int // launch, status: attempt
}

// writes reports whether o changes anything that others see.
func (o op) writes() bool {
	return o.verb == put || o.verb == remove || o.verb == publish || o.verb == launch
}

func (o op) String() string {
	switch o.verb {
	case get:
		return "get " + o.key
	case stat:
		return "stat " + o.key
	case list:
		return "list " + o.key
	case remove:
		return "delete " + o.key
	case publish:
		kinds := make([]string, len(o.events))
		for i, e := range o.events {
			kinds[i] = strings.TrimPrefix(e.Type(), "dev.reprieve.")
		}
		return "publish " + strings.Join(kinds, ", ")
	case launch:
		return "launch " + o.key
	case status:
		return "ask the platform for " + o.key
	case choose:
		return o.key
	case pause:
		return "wait"
	}
	how := "put "
	if o.absent {
		how = "create "
	} else if o.match != 0 {
		how = "swap "
	}
	return how + o.key + o.data.summary()
}

type code uint8

const (
	ok code = iota
	notFound
	conflict
	unavailable
)

var codeNames = [...]string{"ok", "not found", "conflict", "unavailable"}

// result is what an operation answered. Two results with the same hash are the same to a process.
type result struct {
	code   code
	data   *content
	page   []*object
	number int
	epoch  int // how often time has moved on for everybody
}

func (r result) hash() uint64 {
	h := mix(uint64(r.code)<<32|uint64(r.number)<<8|uint64(r.epoch), 1)
	if r.data != nil {
		h = mix(h, r.data.hash)
	}
	for _, o := range r.page {
		h = mix(h, o.hash)
	}
	return h
}

func (r result) String() string {
	switch {
	case r.code != ok:
		return codeNames[r.code]
	case r.data != nil:
		return "ok" + r.data.summary()
	case r.page != nil:
		keys := make([]string, len(r.page))
		for i, o := range r.page {
			keys[i] = o.key
			if o.old {
				keys[i] += " (old)"
			}
		}
		return "[" + strings.Join(keys, " ") + "]"
	}
	return "ok"
}

// stage is a stretch of a process's life that depends on nothing but what key says: so its
// executions can be remembered, and processes that come to the same stage by different ways are alike.
type stage struct {
	key  string
	run  func(p *port) outcome
	seal *sealing // what the stage is about to seal
	dead string   // claim of a process that is known to be dead
}

// sealing is what a process has found out before it seals.
type sealing struct {
	base   *handlers.Ref
	found  []handlers.Checkpoint
	rotten []handlers.Ref
}

// outcome ends a stage.
type outcome struct {
	next *stage // nil: the process is over
	what string // for people
	// What the process believes from here on; the explorer checks it against the truth.
	holds   int           // got hold of this attempt
	durable *handlers.Ref // this checkpoint was reported durable
	current bool          // its heartbeat was accepted
	nak     bool          // handler: the event has to come again
}

// moment is a node in the tree of all executions of a stage: the operation that the process is at,
// and behind each of its results the next moment.
type moment struct {
	id    uint64
	root  *root
	prev  *moment
	via   result // of prev's operation
	op    op
	over  bool
	out   outcome
	after map[uint64]*moment
}

// root is the begin of a stage, with the coroutine that executed it last.
type root struct {
	stage stage
	first *moment
	hot   *coroutine
}

// port is a process's only way to the world.
type port struct {
	yield func(op) bool
	reply result
	dead  bool
}

type abandoned struct{}

func (p *port) do(o op) result {
	if p.dead {
		return result{code: unavailable} // deferred calls of an abandoned execution
	}
	if !p.yield(o) {
		p.dead = true
		panic(abandoned{})
	}
	return p.reply
}

// coroutine is one execution of a stage, parked at a moment.
type coroutine struct {
	port *port
	at   *moment
	out  outcome
	next func() (op, bool)
	stop func()
}

func (x *explorer) begin(s stage) *root {
	r := x.roots[s.key]
	if r == nil {
		r = &root{stage: s}
		x.roots[s.key] = r
		r.first = x.moment(r, nil, result{})
		x.start(r)
		x.advance(r.hot, r.first)
	}
	return r
}

func (x *explorer) moment(r *root, prev *moment, via result) *moment {
	x.moments++
	return &moment{id: mix(uint64(x.moments), 17), root: r, prev: prev, via: via, after: map[uint64]*moment{}}
}

// start makes a new coroutine for r.
func (x *explorer) start(r *root) {
	if r.hot != nil {
		r.hot.stop()
	}
	c := &coroutine{port: &port{}}
	c.next, c.stop = iter.Pull(func(yield func(op) bool) {
		defer func() {
			if e := recover(); e != nil {
				if _, gone := e.(abandoned); !gone {
					panic(violation{fmt.Sprintf("%s panics: %v", r.stage.key, e)})
				}
			}
		}()
		c.port.yield = yield
		c.out = r.stage.run(c.port)
	})
	if r.hot == nil {
		x.hot = append(x.hot, r)
	}
	r.hot = c
	if len(x.hot) > 500 {
		x.hot[0].hot.stop()
		x.hot[0].hot = nil
		x.hot = x.hot[1:]
	}
}

// advance lets c run to its next operation, which it notes at m.
func (x *explorer) advance(c *coroutine, m *moment) {
	was := x.port
	x.port = c.port
	o, more := c.next()
	x.port = was
	c.at = m
	m.op, m.over, m.out = o, !more, c.out
}

// after returns the moment behind m when its operation answers r.
func (x *explorer) after(m *moment, r result) *moment {
	h := r.hash()
	if next := m.after[h]; next != nil {
		return next
	}
	root := m.root
	if root.hot == nil || root.hot.at != m {
		x.start(root)
		var path []*moment
		for at := m; at != nil; at = at.prev {
			path = append(path, at)
		}
		for i := len(path) - 1; i >= 0; i-- {
			want := path[i].op
			root.hot.port.reply = path[i].via
			x.advance(root.hot, path[i])
			if path[i].op.String() != want.String() {
				panic(fmt.Sprintf("%s is not deterministic: %s, then %s", root.stage.key, want, path[i].op))
			}
		}
	}
	next := x.moment(root, m, r)
	root.hot.port.reply = r
	x.advance(root.hot, next)
	m.after[h] = next
	return next
}
