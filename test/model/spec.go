package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// violation is what the explorer panics with.
type violation struct{ what string }

func violate(format string, args ...any) { panic(violation{fmt.Sprintf(format, args...)}) }

type edge struct{ from, to handlers.State }

// byMachines are the changes of state that machines may make without a new attempt, byStarts those
// that begin one, byPersons those that a person may make beside. Written down from the protocol,
// not from the code.
var (
	byMachines = map[edge]bool{
		{handlers.Pending, handlers.Running}:        true,
		{handlers.Resuming, handlers.Running}:       true,
		{handlers.Running, handlers.Preempting}:     true,
		{handlers.Running, handlers.Interrupted}:    true,
		{handlers.Running, handlers.Succeeded}:      true,
		{handlers.Running, handlers.Failed}:         true,
		{handlers.Preempting, handlers.Running}:     true,
		{handlers.Preempting, handlers.Interrupted}: true,
		{handlers.Preempting, handlers.Succeeded}:   true,
		{handlers.Preempting, handlers.Failed}:      true,
		{handlers.Interrupted, handlers.Succeeded}:  true,
		{handlers.Pending, handlers.Failed}:         true, // passed over too often
		{handlers.Resuming, handlers.Failed}:        true,
	}
	byStarts = map[edge]bool{
		{handlers.Interrupted, handlers.Resuming}: true, // reserved
		{handlers.Pending, handlers.Resuming}:     true, // passed over
		{handlers.Resuming, handlers.Resuming}:    true,
		{handlers.Interrupted, handlers.Running}:  true, // in place
		{handlers.Running, handlers.Running}:      true, // in place, after the lease
		{handlers.Preempting, handlers.Running}:   true,
	}
)

// typeOf is the event that tells of a change to a state.
var typeOf = map[handlers.State]string{
	handlers.Running: events.TypeJobStarted, handlers.Preempting: events.TypeJobPreempting, handlers.Interrupted: events.TypeJobInterrupted,
	handlers.Resuming: events.TypeJobResuming, handlers.Succeeded: events.TypeJobSucceeded, handlers.Failed: events.TypeJobFailed, handlers.Cancelled: events.TypeJobCancelled,
}

// checkPut looks at a write that has just succeeded.
func (x *explorer) checkPut(s *state, i int, o op, before *object) {
	if o.key == recordKey {
		var was handlers.Job
		if before != nil {
			was = *before.data.job
		}
		if o.data.job == nil {
			violate("%s writes a record that is none: %s", x.name(i), o.data.bytes)
		}
		x.checkRecord(s, i, was, *o.data.job, before == nil)
	}
	if strings.HasSuffix(o.key, "/manifest.json") && before != nil && before.data != o.data {
		violate("%s overwrites %s", x.name(i), o.key)
	}
}

// fenced reports whether key is a manifest that comes too late to count.
func (x *explorer) fenced(s *state, key string, before *object) bool {
	if before != nil {
		return before.fenced
	}
	rest, isManifest := strings.CutSuffix(key, "/manifest.json")
	if !isManifest {
		return false
	}
	ref, err := handlers.ParseRef(rest[strings.LastIndex(rest, "/")+1:])
	j := s.record()
	return err == nil && j != nil && j.Sealed >= ref.Attempt
}

func claimOf(j handlers.Job) string {
	if len(j.Claims) == 0 {
		return ""
	}
	return j.Claims[0].ID
}

// checkRecord looks at one change of the record by process i.
func (x *explorer) checkRecord(s *state, i int, was, now handlers.Job, created bool) {
	who, person := x.name(i), x.slots[i].kind == human
	if created {
		x.owe(s, was, now)
		return
	}
	grown := now.Attempt - was.Attempt
	mine := x.slots[i].kind == trainer && claimOf(was) == x.slots[i].id && was.State.Live()
	switch {
	case now.Seq < was.Seq:
		violate("%s takes the record back from transition %d to %d", who, was.Seq, now.Seq)
	case grown != 0 && grown != 1:
		violate("%s takes the attempt from %d to %d", who, was.Attempt, now.Attempt)
	case was.State.Terminal() && (was.State != now.State || grown != 0) && !(person && grown == 1):
		violate("%s takes a job that has %s to %s", who, was.State, now.State)
	case person && grown == 1 && was.State != handlers.Interrupted && !was.State.Terminal():
		violate("a retry of a job that is %s", was.State)
	case person:
	case grown == 1 && !byStarts[edge{was.State, now.State}]:
		violate("%s begins attempt %d out of %s, to %s", who, now.Attempt, was.State, now.State)
	case grown == 1 && was.State.Reserved() && x.slots[i].kind != watcher:
		violate("%s passes over attempt %d", who, was.Attempt)
	case grown == 0 && was.State != now.State && !byMachines[edge{was.State, now.State}]:
		violate("%s takes the job from %s to %s", who, was.State, now.State)
	}
	lost := was.State.Live() && (grown == 1 || now.State == handlers.Interrupted && now.Cause == handlers.CauseLostLease)
	if lost && !person && !x.sawDead(s, i, was) {
		violate("%s declares attempt %d dead without a reason", who, was.Attempt)
	}
	if grown == 0 && claimOf(was) != claimOf(now) && !(claimOf(was) == "" && was.State.Reserved() && now.State == handlers.Running) {
		violate("attempt %d goes from %q to %q", now.Attempt, claimOf(was), claimOf(now))
	}
	if now.State == handlers.Running && claimOf(now) == "" {
		violate("attempt %d runs and nobody holds it", now.Attempt)
	}
	if was.State == handlers.Interrupted && now.State == handlers.Succeeded && claimOf(was) != x.slots[i].id {
		violate("%s ends attempt %d, which %s held", who, was.Attempt, claimOf(was))
	}
	if now.State == handlers.Preempting && now.Notice.Node() != now.Claims[0].Node {
		violate("a notice for %s preempts attempt %d on %s", now.Notice.Node(), now.Attempt, now.Claims[0].Node)
	}
	if kind := events.Kind(now.Cause); now.State == handlers.Interrupted && was.State.Live() && kind.Effect() == events.EffectGone && !mine {
		last := now.Seen[len(now.Seen)-1]
		if last.Node() != now.Claims[0].Node {
			violate("a notice for %s ends attempt %d on %s", last.Node(), now.Attempt, now.Claims[0].Node)
		}
	}
	for _, n := range now.Seen {
		had := slices.ContainsFunc(was.Seen, func(h events.Notice) bool { return h.Cancelled == n.Cancelled && events.SameNotice(h, n) })
		if !had && !now.RunsOn(n.Node()) {
			violate("a notice for %s changes attempt %d, which does not run there", n.Node(), now.Attempt)
		}
	}
	x.checkList(s, i, was, now, mine)
	x.owe(s, was, now)
}

// sawDead reports whether process i has seen that the heartbeat of the attempt in j had stopped, or
// knows that its process is dead.
func (x *explorer) sawDead(s *state, i int, j handlers.Job) bool {
	key := liveKey(j.Attempt)
	for m := s.processes[i].at; m.prev != nil; m = m.prev {
		if m.prev.op.verb != list || !strings.HasPrefix(key, m.prev.op.key) {
			continue
		}
		at := slices.IndexFunc(m.via.page, func(o *object) bool { return o.key == key })
		return at < 0 && m.prev.op.key == key || at >= 0 && m.via.page[at].old
	}
	return x.stageOf(s, i).dead == claimOf(j)
}

func liveKey(attempt int) string { return "live/j/" + strconv.Itoa(attempt) + "-0" }

// checkList looks at what became of the list of checkpoints.
func (x *explorer) checkList(s *state, i int, was, now handlers.Job, mine bool) {
	who := x.name(i)
	sealing := x.stageOf(s, i).seal
	sealed := now.Sealed != was.Sealed
	for _, c := range now.Checkpoints {
		m := s.object(c.Key + "manifest.json")
		switch {
		case m == nil:
			violate("the record lists %s, which has no manifest", c.Ref)
		case m.fenced:
			violate("the record lists %s, which was written after attempt %d had been shut out", c.Ref, c.Attempt)
		case !slices.ContainsFunc(was.Checkpoints, func(h handlers.Checkpoint) bool { return h.Ref == c.Ref }) && !sealed && !(mine && c.Attempt == was.Attempt):
			violate("%s lists %s while the job is %s at attempt %d of %s", who, c.Ref, was.State, was.Attempt, claimOf(was))
		}
	}
	if !sealed {
		if len(now.Checkpoints) < len(was.Checkpoints) {
			violate("%s drops checkpoints without a seal", who)
		}
		return
	}
	if !mine || sealing == nil || was.Sealed >= now.Attempt-1 || now.Sealed != now.Attempt-1 {
		violate("%s seals %d (after %d) while the job is %s at attempt %d of %s", who, now.Sealed, was.Sealed, was.State, was.Attempt, claimOf(was))
	}
	x.checkBase(s, was, now, *sealing)
	for _, c := range slices.Concat(was.Checkpoints, sealing.found) {
		if sealing.base != nil && c.Compare(*sealing.base) <= 0 && !slices.ContainsFunc(now.Checkpoints, func(h handlers.Checkpoint) bool { return h.Ref == c.Ref }) {
			violate("attempt %d went on from %s, but %s before it does not count any more", now.Attempt, sealing.base, c.Ref)
		}
	}
}

// checkBase looks at what an attempt is restored from.
func (x *explorer) checkBase(s *state, was, now handlers.Job, from sealing) {
	base := handlers.Ref{}
	if from.base != nil {
		base = *from.base
		m := s.object("jobs/j/checkpoints/" + base.String() + "/manifest.json")
		if m == nil || m.fenced {
			violate("attempt %d goes on from %s, which was written after its attempt had been shut out", now.Attempt, base)
		}
	}
	for _, d := range s.durable {
		if d.Compare(base) > 0 && !slices.Contains(from.rotten, d) {
			violate("%s was reported durable and is not rotten, but attempt %d goes on from %s", d, now.Attempt, base)
		}
	}
	if base.Attempt <= was.Sealed && base.Compare(s.base) > 0 {
		violate("attempt %d goes on from %s, but attempt %d had gone back to %s", now.Attempt, base, was.Sealed+1, s.base)
	}
	if s.based && base != (handlers.Ref{}) && !related(x.trained(s, s.base), x.trained(s, base)) {
		violate("attempt %d goes on from %s (%s), the one before went on from %s (%s): that is another branch",
			now.Attempt, base, x.trained(s, base), s.base, x.trained(s, s.base))
	}
	if s.based && base.Compare(s.base) < 0 && !slices.Contains(from.rotten, s.base) {
		violate("attempt %d goes back to %s, the one before went on from %s, which is not rotten", now.Attempt, base, s.base)
	}
	s.durable = slices.DeleteFunc(s.durable, func(d handlers.Ref) bool { return d.Compare(base) > 0 })
	s.base, s.based = base, from.base != nil
}

// trained returns the state of training that checkpoint r holds.
func (x *explorer) trained(s *state, r handlers.Ref) string {
	o := s.object("jobs/j/checkpoints/" + r.String() + "/data/0/model")
	if o == nil {
		violate("checkpoint %s has no data", r)
	}
	return string(o.data.bytes)
}

// owe notes the events that the change from was to now has to tell.
func (x *explorer) owe(s *state, was, now handlers.Job) {
	typ := typeOf[now.State]
	if was.State == handlers.Preempting && now.State == handlers.Running && was.Attempt == now.Attempt {
		typ = events.TypeJobResumed
	}
	if was.State.Live() && now.Attempt == was.Attempt+1 && now.State == handlers.Running { // declared dead by its successor
		s.untold = insert(s.untold, x.event(events.JobEventID(now.UID, now.Name, now.Seq-1, events.TypeJobInterrupted)))
	}
	if typ != "" && (was.State != now.State || was.Attempt != now.Attempt) {
		s.untold = insert(s.untold, x.event(events.JobEventID(now.UID, now.Name, now.Seq, typ)))
	}
	if len(now.Checkpoints) > len(was.Checkpoints) && now.Sealed == was.Sealed {
		s.untold = insert(s.untold, x.event(events.JobEventID(now.UID, now.Name, now.Seq, events.TypeCheckpointCommitted)))
	}
}

// checkOutcome compares what process i believes at the end of a stage with the truth.
func (x *explorer) checkOutcome(s *state, i int, m *moment) {
	j, id := s.record(), x.slots[i].id
	if n := m.out.holds; n > 0 {
		for other, p := range s.processes {
			if other != i && p.held == n {
				violate("attempt %d is held by %s and by %s", n, x.name(other), id)
			}
		}
		if j.Attempt != n || claimOf(*j) != id || !j.State.Live() {
			violate("%s believes to hold attempt %d; the job is %s at attempt %d of %s", id, n, j.State, j.Attempt, claimOf(*j))
		}
		s.processes[i].held = n
	}
	if d := m.out.durable; d != nil {
		if !slices.ContainsFunc(j.Checkpoints, func(c handlers.Checkpoint) bool { return c.Ref == *d }) {
			violate("%s reports %s as durable, which the record does not list", id, d)
		}
		if !slices.Contains(s.durable, *d) {
			s.durable = append(s.durable, *d)
		}
	}
	if m.out.current {
		for at := m; at.prev != nil; at = at.prev {
			if o := at.prev.op; o.verb != get || o.key != recordKey {
				continue
			}
			if read := at.via.data.job; claimOf(*read) != id || !read.State.Live() {
				violate("%s goes on after it read that the job is %s at attempt %d of %s", id, read.State, read.Attempt, claimOf(*read))
			}
			break
		}
	}
}

// number parses the attempt of a launch name or live object.
func number(name string) int {
	name = strings.TrimSuffix(name, "-0")
	n, _ := strconv.Atoi(name[strings.LastIndexAny(name, "/-")+1:])
	return n
}
