package handlers

import (
	"context"
	"iter"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// Jobs is the job records. Safe for concurrent use.
type Jobs interface {
	// Get reads a record. ErrNotFound, ErrUnavailable.
	Get(ctx context.Context, job string) (Job, error)

	// Update reads the record, lets decide turn it into another, and writes that with a
	// compare-and-swap; when the record moved meanwhile, or the outcome of the write is unknown,
	// it reads and decides again (bounded). So decide has to be pure and to answer ErrIgnored when
	// the record already is as it wants it. Before a write that begins a new attempt, the attempt's
	// live object is put; before one that fills the outbox, the outbox's mark.
	// An error of decide comes back as it is, with the record that it was given. ErrNotFound,
	// ErrConflict (moved too often), ErrUnavailable.
	Update(ctx context.Context, job string, decide func(Job) (Job, error)) (Job, error)
}

// Traces is what attempts and transitions leave in the store for the watch pass to find.
type Traces interface {
	// Live lists the live objects of all attempts, page by page. Ages are by the storage's clock.
	Live(ctx context.Context) iter.Seq2[Heartbeat, error]
	// Touch makes a live object fresh. DropLive deletes one. Both idempotent.
	Touch(ctx context.Context, h Heartbeat) error
	DropLive(ctx context.Context, h Heartbeat) error
	// Outboxes lists the marks of transitions that wrote events. DropOutbox deletes one; idempotent.
	Outboxes(ctx context.Context) iter.Seq2[OutboxMark, error]
	DropOutbox(ctx context.Context, m OutboxMark) error
}

// Heartbeat is the object live/<job>/<attempt>-<rank>.
type Heartbeat struct {
	Job     string
	Attempt int
	Rank    int
	Age     time.Duration // since it was last put
}

// OutboxMark is the object outbox/<job>/<seq>.
type OutboxMark struct {
	Job string
	Seq int
}

// Nodes is what is known about machines.
type Nodes interface {
	// Jobs returns the names of the jobs that registered on node, ErrNotFound if it is unknown.
	Jobs(ctx context.Context, node events.Node) ([]string, error)
	// Note keeps a notice for the processes that will start on its node. Idempotent.
	Note(ctx context.Context, n events.Notice) error
}

// Launcher starts the current attempt of a job on a platform, by its launch spec. Launch names
// carry the store's and the job's uid, so that an object of the same name that somebody else made
// is told apart.
type Launcher interface {
	// Launch starts job.LaunchName(). Launching twice is launching once: nil if it is there and
	// is this job's. ErrInvalid (the spec), ErrConflict (the name is taken by somebody else),
	// ErrUnavailable.
	Launch(ctx context.Context, job Job) error
	// Status says what became of job.LaunchName(). ErrUnavailable.
	Status(ctx context.Context, job Job) (LaunchStatus, error)
}

// LaunchStatus is what a platform says about a launched attempt.
type LaunchStatus string

const (
	LaunchQueued  LaunchStatus = "queued"  // it will start
	LaunchRunning LaunchStatus = "running" // its process exists
	LaunchFailed  LaunchStatus = "failed"  // it ended
	LaunchGone    LaunchStatus = "gone"    // the platform does not know it
)
