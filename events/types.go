package events

import "time"

// Event types. The data type of each is in Types.
const (
	TypeNodeNotice          = "dev.reprieve.node.notice"
	TypeNodeNoticeCancelled = "dev.reprieve.node.notice.cancelled"

	TypeJobStarted     = "dev.reprieve.job.started"
	TypeJobProgress    = "dev.reprieve.job.progress"
	TypeJobPreempting  = "dev.reprieve.job.preempting"
	TypeJobInterrupted = "dev.reprieve.job.interrupted"
	TypeJobResuming    = "dev.reprieve.job.resuming"
	TypeJobResumed     = "dev.reprieve.job.resumed"
	TypeJobSucceeded   = "dev.reprieve.job.succeeded"
	TypeJobFailed      = "dev.reprieve.job.failed"
	TypeJobCancelled   = "dev.reprieve.job.cancelled"

	TypeCheckpointRequested = "dev.reprieve.checkpoint.requested"
	TypeCheckpointCommitted = "dev.reprieve.checkpoint.committed"
	TypeCheckpointFailed    = "dev.reprieve.checkpoint.failed"

	TypeArtifactTombstoned = "dev.reprieve.artifact.tombstoned"
	TypeArtifactRestored   = "dev.reprieve.artifact.restored"
	TypeArtifactDeleted    = "dev.reprieve.artifact.deleted"
	TypeArtifactKept       = "dev.reprieve.artifact.kept"

	TypeSweepDue        = "dev.reprieve.sweep.due"
	TypeWatchDue        = "dev.reprieve.watch.due"
	TypeReportDue       = "dev.reprieve.report.due"
	TypeReportPublished = "dev.reprieve.report.published"
	TypeAlertRaised     = "dev.reprieve.alert.raised"
)

// Types maps every event type to a zero value of its data.
var Types = map[string]any{
	TypeNodeNotice:          Notice{},
	TypeNodeNoticeCancelled: Notice{},
	TypeJobStarted:          Job{},
	TypeJobProgress:         Progress{},
	TypeJobPreempting:       Job{},
	TypeJobInterrupted:      Job{},
	TypeJobResuming:         Job{},
	TypeJobResumed:          Job{},
	TypeJobSucceeded:        Job{},
	TypeJobFailed:           Job{},
	TypeJobCancelled:        Job{},
	TypeCheckpointRequested: Checkpoint{},
	TypeCheckpointCommitted: Checkpoint{},
	TypeCheckpointFailed:    Checkpoint{},
	TypeArtifactTombstoned:  Artifact{},
	TypeArtifactRestored:    Artifact{},
	TypeArtifactDeleted:     Artifact{},
	TypeArtifactKept:        Artifact{},
	TypeSweepDue:            Due{},
	TypeWatchDue:            Due{},
	TypeReportDue:           Due{},
	TypeReportPublished:     Report{},
	TypeAlertRaised:         Alert{},
}

// Kind is what a notice announces.
type Kind string

const (
	KindPreempt        Kind = "preempt"
	KindTerminate      Kind = "terminate"
	KindStop           Kind = "stop"
	KindHibernate      Kind = "hibernate"
	KindRebalance      Kind = "rebalance"
	KindMaintenance    Kind = "maintenance"
	KindCapacityExpiry Kind = "capacity-expiry"
	KindInterrupted    Kind = "interrupted" // the machine was taken away; arrives at or after the fact
	KindGone           Kind = "gone"        // the machine does not exist any more
)

// Kinds lists every notice kind.
var Kinds = []Kind{KindPreempt, KindTerminate, KindStop, KindHibernate, KindRebalance,
	KindMaintenance, KindCapacityExpiry, KindInterrupted, KindGone}

// Effect is what a kind means for the attempts on the machine.
type Effect int

const (
	EffectNone       Effect = iota // unknown kind
	EffectCheckpoint               // checkpoint now, keep running
	EffectStop                     // checkpoint now, then hand over: the machine goes away
	EffectGone                     // the machine is gone: whoever ran there runs no more
)

// Effect returns what a notice of kind k asks for.
func (k Kind) Effect() Effect {
	switch k {
	case KindRebalance, KindMaintenance:
		return EffectCheckpoint
	case KindPreempt, KindTerminate, KindStop, KindHibernate, KindCapacityExpiry:
		return EffectStop
	case KindInterrupted, KindGone:
		return EffectGone
	}
	return EffectNone
}

// Node names a machine.
type Node struct {
	Provider string `json:"provider"` // aws, gcp, azure, k8s; local and host where no cloud is
	Instance string `json:"instance"` // the provider's id for it
}

// String is the form that --node takes: provider/instance.
func (n Node) String() string { return n.Provider + "/" + n.Instance }

// Notice says that something is going to happen to a machine.
type Notice struct {
	Provider  string     `json:"provider"`
	Instance  string     `json:"instance"`
	Kind      Kind       `json:"kind" jsonschema:"enum=preempt,enum=terminate,enum=stop,enum=hibernate,enum=rebalance,enum=maintenance,enum=capacity-expiry,enum=interrupted,enum=gone"`
	Deadline  *time.Time `json:"deadline,omitempty"` // absent when there is none
	Zone      string     `json:"zone,omitempty"`
	NativeID  string     `json:"native_id,omitempty"` // the id that the cloud gave it, for people
	Cancelled bool       `json:"cancelled,omitempty"`
}

// Node returns the machine that n is about.
func (n Notice) Node() Node { return Node{Provider: n.Provider, Instance: n.Instance} }

// noticeSlack is how far apart the deadlines of two copies of one notice may lie: EventBridge
// carries no deadline, so it is derived from the time of the event.
const noticeSlack = 90 * time.Second

// SameNotice reports whether a and b are copies of one notice: the same machine and kind, and
// deadlines within 90 s (or both without). A notice and its cancellation are the same notice.
func SameNotice(a, b Notice) bool {
	if a.Node() != b.Node() || a.Kind != b.Kind || (a.Deadline == nil) != (b.Deadline == nil) {
		return false
	}
	return a.Deadline == nil || a.Deadline.Sub(*b.Deadline).Abs() <= noticeSlack
}

// Job is the data of the job lifecycle events.
type Job struct {
	Job     string `json:"job"`
	UID     string `json:"uid"`
	Attempt int    `json:"attempt"`
	Seq     int    `json:"seq"` // the number of the transition that this event tells of
	State   string `json:"state"`
	Node    *Node  `json:"node,omitempty"`   // the machine of the attempt
	Cause   string `json:"cause,omitempty"`  // why: a notice kind, sigterm, lost-lease, exit, no-progress, person
	Detail  string `json:"detail,omitempty"` // for people
	Step    *int64 `json:"step,omitempty"`   // of the checkpoint that counts now
}

// Progress is the data of job.progress, as the trainer reported it. Absent means not reported.
type Progress struct {
	Job     string   `json:"job"`
	Attempt int      `json:"attempt"`
	Step    int64    `json:"step"`
	Epoch   *float64 `json:"epoch,omitempty"`
	Samples *int64   `json:"samples,omitempty"`
	Loss    *float64 `json:"loss,omitempty"`
}

// Checkpoint is the data of the checkpoint events.
type Checkpoint struct {
	Job      string     `json:"job"`
	UID      string     `json:"uid"`
	Attempt  int        `json:"attempt"`
	Seq      int        `json:"seq"`
	Node     *Node      `json:"node,omitempty"`
	Step     *int64     `json:"step,omitempty"`
	Key      string     `json:"key,omitempty"`      // prefix in the store
	Bytes    int64      `json:"bytes,omitempty"`    // sum of the files' sizes
	Kind     Kind       `json:"kind,omitempty"`     // requested: the notice behind it
	Deadline *time.Time `json:"deadline,omitempty"` // requested: durable by then
	Reason   string     `json:"reason,omitempty"`   // failed: why
}

// Artifact is the data of the artifact events.
type Artifact struct {
	Job      string `json:"job"`
	Artifact string `json:"artifact"` // <attempt>-<step>
	Bytes    int64  `json:"bytes"`
	Reason   string `json:"reason"`
}

// Due is the data of the events that cron publishes.
type Due struct {
	At time.Time `json:"at"`
}

// Report is the data of report.published.
type Report struct {
	Key   string    `json:"key"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// Alert is the data of alert.raised: something that a person has to look at.
type Alert struct {
	Job    string `json:"job,omitempty"`
	Code   string `json:"code"`   // stable, for routing: no-progress, launch-refused, ...
	Detail string `json:"detail"` // one sentence that says what to do next
}
