package model

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
)

// content is the bytes of an object, kept once. Its hash is its version, as an ETag is: what a
// process sees does not depend on how many writes others have made.
type content struct {
	hash  uint64
	bytes []byte
	job   *handlers.Job // if it is a record
}

func (c *content) summary() string {
	if c == nil || c.job == nil {
		return ""
	}
	j, who := c.job, ""
	if len(j.Claims) > 0 {
		who = " " + j.Claims[0].ID
	}
	refs := make([]string, len(j.Checkpoints))
	for i, c := range j.Checkpoints {
		refs[i] = c.String()
	}
	return fmt.Sprintf(" {#%d %s, attempt %d%s, list [%s], sealed %d, outbox %d}", j.Seq, j.State, j.Attempt, who, strings.Join(refs, " "), j.Sealed, len(j.Outbox))
}

func (x *explorer) content(data []byte) *content {
	h := hashString(string(data))
	c := x.contents[h]
	if c == nil {
		c = &content{hash: h, bytes: data}
		if strings.HasPrefix(string(data), "{\n  \"format\": 1,\n  \"uid\"") {
			var j handlers.Job
			if json.Unmarshal(data, &j) == nil {
				c.job = &j
			}
		}
		x.contents[h] = c
	}
	return c
}

// object is what the scheduler knows about a key beside what the store does. It never changes.
type object struct {
	key    string
	hash   uint64 // of all that follows
	data   *content
	raw    blob.Version // as the store under test calls it
	old    bool         // put so long ago that every lease and launch deadline is over
	fenced bool         // a manifest that was written after a later attempt had sealed
}

func (o *object) hashed() *object {
	o.hash = hashString(o.key) ^ o.data.hash
	if o.old {
		o.hash = mix(o.hash, 5)
	}
	if o.fenced {
		o.hash = mix(o.hash, 7)
	}
	return o
}

// aged returns o as it is long after it was put.
func (o object) aged() *object {
	o.old = true
	return o.hashed()
}

type life uint8

const (
	unborn life = iota // or, for a handler: idle
	alive
	killed
	exited
)

// process is what runs in one slot.
type process struct {
	life  life
	at    *moment
	held  int    // attempt that it got hold of
	given int    // attempt in its environment
	event uint32 // handler: what it was delivered
}

// letter is an event on the bus that its handler has not acked.
type letter struct {
	event  uint32
	flight bool // delivered
}

// state is everything that the future depends on. States are values: a step makes a new one.
type state struct {
	store     *mem.Store
	objects   []*object // ordered by key
	processes []process
	bus       []letter // ordered by event
	sent      []uint32 // events that the bus has seen: it publishes none twice
	launched  []uint8  // by attempt: 0, or launched, started, ended
	left      [faults]uint8
	epoch     int

	// What the checks have to remember.
	untold  []uint32       // events of transitions that have not been published
	durable []handlers.Ref // reported durable, and not known to be rotten
	base    handlers.Ref   // of the attempt that sealed last
	based   bool
}

func mix(h, v uint64) uint64 {
	h ^= v + 0x9e3779b97f4a7c15 + h<<6 + h>>2
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return h
}

func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h, uint64(len(s)))
}

// world is a hash of the part of s that outlives all processes.
func (s *state) world() uint64 {
	h := uint64(s.epoch)
	for _, o := range s.objects {
		h = mix(h, o.hash)
	}
	for _, l := range s.bus {
		h = mix(h, uint64(l.event))
	}
	h = mix(h, 11)
	for _, e := range s.sent {
		h = mix(h, uint64(e))
	}
	h = mix(h, 13)
	for _, l := range s.launched {
		h = mix(h, uint64(l))
	}
	h = mix(h, 17)
	for _, e := range s.untold {
		h = mix(h, uint64(e))
	}
	h = mix(h, 19)
	for _, r := range s.durable {
		h = mix(h, uint64(r.Attempt)<<32|uint64(r.Step))
	}
	if s.based {
		h = mix(h, uint64(s.base.Attempt)<<32|uint64(s.base.Step)+23)
	}
	return h
}

// hash is of all of s but for its budget.
func (s *state) hash() uint64 {
	h := s.world()
	for _, p := range s.processes {
		h = mix(h, uint64(p.life)|uint64(p.held)<<8|uint64(p.given)<<16|uint64(p.event)<<24)
		if p.at != nil {
			h = mix(h, p.at.id)
		}
	}
	for _, l := range s.bus {
		if l.flight {
			h = mix(h, uint64(l.event)+29)
		}
	}
	return h
}

// budget packs what may still go wrong, four bits a fault.
func (s *state) budget() uint64 {
	b := uint64(0)
	for _, n := range s.left { // there are no more than 16
		b = b<<4 | uint64(n)
	}
	return b
}

// covers reports whether everything that may go wrong with budget b may with budget a: no group of
// four bits is larger in b. The numbers are below 8.
func covers(a, b uint64) bool {
	const tops = 0x8888888888888888
	return ((a|tops)-b)&tops == tops
}

// clone copies s, but for the store, which Put and Delete replace.
func (s *state) clone() *state {
	c := *s
	c.objects = slices.Clone(s.objects)
	c.processes = slices.Clone(s.processes)
	c.bus = slices.Clone(s.bus)
	c.sent = slices.Clone(s.sent)
	c.launched = slices.Clone(s.launched)
	c.untold = slices.Clone(s.untold)
	c.durable = slices.Clone(s.durable)
	return &c
}

func (s *state) find(key string) (int, bool) {
	return slices.BinarySearchFunc(s.objects, key, func(o *object, key string) int { return strings.Compare(o.key, key) })
}

func (s *state) object(key string) *object {
	if i, found := s.find(key); found {
		return s.objects[i]
	}
	return nil
}

const recordKey = "jobs/j/job.json"

// record returns the job record, nil before there is one.
func (s *state) record() *handlers.Job {
	if o := s.object(recordKey); o != nil {
		return o.data.job
	}
	return nil
}

// quiet reports whether no process is at work.
func (s *state) quiet() bool {
	return !slices.ContainsFunc(s.processes, func(p process) bool { return p.life == alive })
}

// do executes o on behalf of process i. s changes in place.
func (x *explorer) do(s *state, i int, o op) result {
	ctx := context.Background()
	res := result{epoch: s.epoch}
	switch o.verb {
	case get, stat:
		body, info, err := s.store.Get(ctx, o.key)
		if err != nil {
			res.code = codeOf(err)
			break
		}
		_ = body.Close()
		obj := s.object(o.key)
		if obj == nil || obj.raw != info.Version {
			panic("the store and its index disagree about " + o.key)
		}
		res.data = obj.data
	case list:
		page, err := s.store.List(ctx, o.key, o.after, o.limit)
		if err != nil {
			res.code = codeOf(err)
			break
		}
		res.page = make([]*object, 0, len(page.Objects))
		for _, info := range page.Objects {
			res.page = append(res.page, s.object(info.Key))
		}
		if page.More {
			res.number = 1
		}
	case put:
		cond := blob.Cond{Absent: o.absent}
		before := s.object(o.key)
		if o.match != 0 {
			cond.Version = "another"
			if before != nil && before.data.hash == o.match {
				cond.Version = before.raw
			}
		}
		store := s.store.Clone()
		info, err := blob.PutBytes(ctx, store, o.key, o.data.bytes, cond)
		if err != nil {
			res.code = codeOf(err)
			break
		}
		s.store = store
		x.checkPut(s, i, o, before)
		now := (&object{key: o.key, data: o.data, raw: info.Version, fenced: x.fenced(s, o.key, before)}).hashed()
		if at, found := s.find(o.key); found {
			s.objects[at] = now
		} else {
			s.objects = slices.Insert(s.objects, at, now)
		}
	case remove:
		s.store = s.store.Clone()
		if err := s.store.Delete(ctx, o.key); err != nil {
			res.code = codeOf(err)
		}
		if at, found := s.find(o.key); found {
			s.objects = slices.Delete(s.objects, at, at+1)
		}
	case publish:
		for _, e := range o.events {
			x.post(s, e)
		}
	case launch:
		if j := s.record(); o.number > j.Attempt {
			violate("%s launches attempt %d, which does not exist", x.name(i), o.number)
		}
		for len(s.launched) <= o.number {
			s.launched = append(s.launched, 0)
		}
		s.launched[o.number] = max(s.launched[o.number], launchedIt)
	case status:
		res.number = 0
		if o.number < len(s.launched) {
			res.number = int(s.launched[o.number])
		}
	}
	return res
}

// States of a launched name; the numbers are those that remote.Status reads.
const (
	launchedIt uint8 = iota + 1
	startedIt
	endedIt
)

func codeOf(err error) code {
	switch handlers.Class(err) {
	case handlers.ErrNotFound:
		return notFound
	case handlers.ErrConflict:
		return conflict
	}
	panic("unexpected: " + err.Error())
}

// event numbers e by its id.
func (x *explorer) event(id string) uint32 {
	n, found := x.eventIDs[id]
	if !found {
		n = uint32(len(x.eventIDs) + 1)
		x.eventIDs[id] = n
		x.events = append(x.events, events.Event{})
	}
	return n
}

// post puts e on the bus.
func (x *explorer) post(s *state, e events.Event) {
	n := x.event(e.ID())
	x.events[n-1] = e
	if at := slices.Index(s.untold, n); at >= 0 {
		s.untold = slices.Delete(s.untold, at, at+1)
	}
	if x.slotFor(e.Type()) < 0 || slices.Contains(s.sent, n) {
		return
	}
	s.sent = insert(s.sent, n)
	at, _ := slices.BinarySearchFunc(s.bus, n, func(l letter, n uint32) int { return int(l.event) - int(n) })
	s.bus = slices.Insert(s.bus, at, letter{event: n})
}

func insert(list []uint32, n uint32) []uint32 {
	at, found := slices.BinarySearch(list, n)
	if found {
		return list
	}
	return slices.Insert(list, at, n)
}

// settle ends the delivery of an event.
func (s *state) settle(event uint32, ack bool) {
	for i, l := range s.bus {
		if l.event == event {
			if ack {
				s.bus = slices.Delete(s.bus, i, i+1)
			} else {
				s.bus[i].flight = false
			}
			return
		}
	}
}
