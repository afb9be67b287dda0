// Package handlers decides what to do about events: the job record with its state machine, and
// one file per decision (notice, resume, watch). Everything here is pure: no I/O, no clock, no
// randomness. What a decision needs from the world comes in through ports.go; time comes in as
// an argument or as a Now field.
package handlers

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// State is where a job stands.
//
//	pending -> running -> preempting -> interrupted -> resuming -> running ...
//	             \-> succeeded | failed | cancelled          (terminal)
//
// Legal besides the drawn ones: running to interrupted, preempting to running, preempting to
// succeeded or failed, interrupted to succeeded (by the claimant whose child had finished),
// resuming to resuming (the next attempt), anything not terminal to cancelled, and, by a person
// alone, terminal to resuming or interrupted (retry).
type State string

const (
	Pending     State = "pending"     // attempt 1 is reserved for a launched process
	Running     State = "running"     // the current attempt is claimed
	Preempting  State = "preempting"  // claimed, and its machine is going away
	Interrupted State = "interrupted" // the attempt is over, the job is not
	Resuming    State = "resuming"    // the next attempt is reserved for a launched process
	Succeeded   State = "succeeded"
	Failed      State = "failed"
	Cancelled   State = "cancelled"
)

// Terminal reports whether machines may never leave s.
func (s State) Terminal() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Reserved reports whether s waits for a launched process to claim the attempt.
func (s State) Reserved() bool { return s == Pending || s == Resuming }

// Live reports whether an attempt is claimed in s.
func (s State) Live() bool { return s == Running || s == Preempting }

// Restarter is who starts a job again after an interruption. Exactly one does.
type Restarter string

const (
	RestarterReprieve Restarter = "reprieve" // the record has a launch spec
	RestarterPlatform Restarter = "platform" // Job, JobSet, Slurm requeue, systemd ... run the same command again
	RestarterNone     Restarter = "none"     // a person runs the same command again
)

// Causes of an interruption or an end, beside the notice kinds.
const (
	CauseSigterm    = "sigterm"     // unknown: nobody said why
	CauseLostLease  = "lost-lease"  // no heartbeat for a lease
	CauseExit       = "exit"        // the child ended by itself
	CauseStart      = "start"       // the command could not be started
	CauseUnclaimed  = "unclaimed"   // nobody claimed the reservation
	CauseNoProgress = "no-progress" // maxFruitless attempts in a row committed nothing
	CausePerson     = "person"
)

const (
	// maxFruitless attempts in a row without a new committed checkpoint end a job.
	maxFruitless = 5
	// defaultFailures is the failure budget of a job without a launch spec, or whose spec has none.
	defaultFailures = 3
	// outboxLimit bounds the record of a job that nobody publishes for; the oldest events go first.
	outboxLimit = 64
)

// Job is the record jobs/<name>/job.json. It changes only by compare-and-swap, from one Job to
// another by the methods in this package; every method leaves its receiver as it was.
type Job struct {
	Format int    `json:"format"` // 1
	UID    string `json:"uid"`    // random; tells this job from a later one of the same name
	Name   string `json:"name"`
	State  State  `json:"state"`
	Seq    int    `json:"seq"` // number of the last transition

	// Attempt is the fencing token. It grows by one with each start.
	Attempt int     `json:"attempt"`
	Nodes   int     `json:"nodes"`            // ranks of an attempt: supervisors, one per machine
	Claims  []Claim `json:"claims,omitempty"` // of the current attempt, one per rank; empty: reserved

	Restarter Restarter `json:"restarter"`
	Launch    *Launch   `json:"launch,omitempty"`

	Cause   string          `json:"cause,omitempty"`    // of the state, where it needs one
	Detail  string          `json:"detail,omitempty"`   // the same for people
	Notice  *events.Notice  `json:"notice,omitempty"`   // in force: why the job is preempting
	Seen    []events.Notice `json:"seen,omitempty"`     // every notice of this attempt, also those that changed nothing
	RetryAt *time.Time      `json:"retry_at,omitempty"` // interrupted: not before

	Preemptions int `json:"preemptions"`
	Failures    int `json:"failures"`
	Fruitless   int `json:"fruitless"` // attempts in a row that committed nothing

	// Checkpoints are the ones that count, in numeric (attempt, step) order. Nothing else is ever resumed from.
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	// Sealed: manifests of this attempt and of older ones can never join Checkpoints any more.
	Sealed int `json:"sealed"`
	// Base is what the current attempt was restored from; nil: it started from nothing.
	Base *Ref `json:"base,omitempty"`

	// Outbox holds the events of the last transitions until they are published.
	Outbox        []events.Event `json:"outbox,omitempty"`
	OutboxDropped int            `json:"outbox_dropped,omitempty"` // beyond outboxLimit
	Trace         events.Trace   `json:"trace"`

	Created time.Time  `json:"created"`
	Updated time.Time  `json:"updated"`
	Ended   *time.Time `json:"ended,omitempty"`
}

// Claim says which process holds one rank of the current attempt, and where it runs.
type Claim struct {
	ID     string      `json:"id"`   // random, of the process
	Rank   int         `json:"rank"` // 0 to Nodes-1
	Node   events.Node `json:"node"`
	Host   string      `json:"host"`
	Boot   string      `json:"boot"`   // the kernel's boot id: a pid means something only within it
	PIDNS  string      `json:"pid_ns"` // pid namespace: a pid means something only within it, too
	PID    int         `json:"pid"`
	Start  uint64      `json:"start"` // the process's start time in clock ticks since boot: tells a recycled pid
	PodUID string      `json:"pod_uid,omitempty"`
	At     time.Time   `json:"at"`
}

// Launch says how to start a job again: a launch spec file, such as docs/launch-local.yaml.
type Launch struct {
	Kind     string         `json:"kind" yaml:"kind"`
	Template map[string]any `json:"template" yaml:"template"`
	Budget   Budget         `json:"budget,omitzero" yaml:"budget"`
	Backoff  Backoff        `json:"backoff,omitzero" yaml:"backoff"`
}

// Budget bounds how often a job is started again. Nil: preemptions unlimited, failures 3.
type Budget struct {
	Preemptions *int `json:"preemptions,omitempty" yaml:"preemptions"`
	Failures    *int `json:"failures,omitempty" yaml:"failures"`
}

// Backoff is the pause after the n-th failure: Initial x Factor^(n-1), at most Max.
// The zero value means 10 s, 2, 10 min. Preemptions are never delayed.
type Backoff struct {
	Initial Duration `json:"initial,omitzero" yaml:"initial"`
	Factor  float64  `json:"factor,omitzero" yaml:"factor"`
	Max     Duration `json:"max,omitzero" yaml:"max"`
}

// Duration is a time.Duration that reads and writes as "10s" in JSON and YAML.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 {
		return fmt.Errorf("%w: duration %q: write it like 90s or 10m", ErrInvalid, text)
	}
	*d = Duration(parsed)
	return nil
}

var jobName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// CheckName reports whether name can be a job's: what a Kubernetes object or an instance tag may
// be called, so that it fits everywhere. The error is ErrInvalid.
func CheckName(name string) error {
	if !jobName.MatchString(name) {
		return fmt.Errorf("%w: job name %q: use 1 to 63 of a-z, 0-9, '-' and '.', beginning and ending with a letter or digit", ErrInvalid, name)
	}
	return nil
}

// LaunchName is what the current attempt is called on its platform. Launching it twice is launching it once.
func (j Job) LaunchName() string { return j.Name + "-" + strconv.Itoa(j.Attempt) }

// Claimed reports whether claim holds a rank of the current attempt.
func (j Job) Claimed(claim string) bool {
	return claim != "" && slices.ContainsFunc(j.Claims, func(c Claim) bool { return c.ID == claim })
}

// Current reports whether the process that holds claim may go on: heartbeat, commit, train.
func (j Job) Current(claim string) bool { return j.State.Live() && j.Claimed(claim) }

// RunsOn reports whether the current attempt runs, or ran, on node.
func (j Job) RunsOn(node events.Node) bool {
	return slices.ContainsFunc(j.Claims, func(c Claim) bool { return c.Node == node })
}

// begin returns the copy that a transition works on.
func (j Job) begin(now time.Time) Job {
	j.Seq++
	j.Updated = now.UTC()
	j.Outbox = slices.Clone(j.Outbox)
	j.Seen = slices.Clone(j.Seen)
	j.Checkpoints = slices.Clone(j.Checkpoints)
	return j
}

// moveTo changes the state and says so.
func (j Job) moveTo(state State, cause, detail, event string) Job {
	j.State, j.Cause, j.Detail = state, cause, detail
	if state != Preempting {
		j.Notice = nil
	}
	if state != Interrupted {
		j.RetryAt = nil
	}
	if state.Terminal() {
		ended := j.Updated
		j.Ended = &ended
	} else {
		j.Ended = nil
	}
	return j.emit(event, events.Job{
		Job: j.Name, UID: j.UID, Attempt: j.Attempt, Seq: j.Seq, State: string(state),
		Node: j.node(), Cause: cause, Detail: detail, Step: j.newestStep(),
	})
}

// emit puts an event of the transition under way into the outbox.
func (j Job) emit(typ string, data any) Job {
	e, err := events.New(typ, events.Source, j.Name, events.JobEventID(j.UID, j.Name, j.Seq, typ), j.Updated, data)
	if err != nil {
		panic(err) // data is one of our own structs
	}
	e = events.WithTrace(e, j.Trace)
	j.Trace = events.TraceOf(e)
	j.Outbox = append(j.Outbox, e)
	if over := len(j.Outbox) - outboxLimit; over > 0 {
		j.Outbox = j.Outbox[over:]
		j.OutboxDropped += over
	}
	return j
}

// Published returns j without the outbox events whose ids are given; ErrIgnored if it has none of them.
func (j Job) Published(ids []string) (Job, error) {
	rest := slices.DeleteFunc(slices.Clone(j.Outbox), func(e events.Event) bool { return slices.Contains(ids, e.ID()) })
	if len(rest) == len(j.Outbox) {
		return j, fmt.Errorf("%w: nothing of it is in the outbox", ErrIgnored)
	}
	j.Outbox = rest
	return j, nil
}

func (j Job) node() *events.Node {
	if len(j.Claims) == 0 {
		return nil
	}
	node := j.Claims[0].Node
	return &node
}

func (j Job) newestStep() *int64 {
	if len(j.Checkpoints) == 0 {
		return nil
	}
	step := j.Checkpoints[len(j.Checkpoints)-1].Step
	return &step
}

func (j Job) failureBudget() int {
	if j.Launch != nil && j.Launch.Budget.Failures != nil {
		return *j.Launch.Budget.Failures
	}
	return defaultFailures
}

func (j Job) backoff() time.Duration {
	b := Backoff{Initial: Duration(10 * time.Second), Factor: 2, Max: Duration(10 * time.Minute)}
	if j.Launch != nil {
		if j.Launch.Backoff.Initial > 0 {
			b.Initial = j.Launch.Backoff.Initial
		}
		if j.Launch.Backoff.Factor >= 1 {
			b.Factor = j.Launch.Backoff.Factor
		}
		if j.Launch.Backoff.Max > 0 {
			b.Max = j.Launch.Backoff.Max
		}
	}
	pause := float64(b.Initial)
	for range j.Failures - 1 {
		pause = min(pause*b.Factor, float64(b.Max))
	}
	return time.Duration(min(pause, float64(b.Max)))
}
