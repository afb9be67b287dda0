package supervise

import (
	"context"
	"os"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// Record is this process's hold on the job record (infra/catalog.Attempt). Every method that
// writes returns handlers.ErrSuperseded once the hold is lost, and the record in any case.
type Record interface {
	Beat(ctx context.Context) (handlers.Job, error)
	Notice(ctx context.Context, e events.Event) (handlers.Job, error)
	Interrupt(ctx context.Context, cause, detail string) (handlers.Job, error)
	End(ctx context.Context, code int, detail string) (handlers.Job, error)
	Cancel(ctx context.Context, detail string) (handlers.Job, error)
}

// Checkpoints is the same hold's way to the checkpoints of the job (infra/catalog.Attempt).
type Checkpoints interface {
	// Candidates lists what may be restored, newest first, and what Seal may adopt.
	Candidates(ctx context.Context) (candidates, found []handlers.Checkpoint, err error)
	Manifest(ctx context.Context, ref handlers.Ref) (handlers.Manifest, error)
	Seal(ctx context.Context, base *handlers.Ref, found []handlers.Checkpoint) (handlers.Job, error)
	// Commit returns nil when the checkpoint is durable.
	Commit(ctx context.Context, draft handlers.Manifest, data func(ctx context.Context, prefix string) ([]handlers.File, error)) (handlers.Checkpoint, error)
}

// Hold is both.
type Hold interface {
	Record
	Checkpoints
}

// Transfer moves the bytes (infra/transfer).
type Transfer interface {
	// Upload puts files below prefix.
	Upload(ctx context.Context, prefix string, files []Source) ([]handlers.File, error)
	// Download puts a checkpoint into dir, verified and in one step. handlers.ErrRotten if its data is not what
	// m says; every other error is worth another try.
	Download(ctx context.Context, c handlers.Checkpoint, m handlers.Manifest, dir string) error
	// Clean removes what a download that was killed left in dir.
	Clean(dir string) error
}

// Source is one file to upload.
type Source struct {
	Path string // relative to the checkpoint directory, with slashes
	Open func() (*os.File, error)
}

// Unit is one checkpoint in a directory, as infra/framework sees it.
type Unit struct {
	Name     string
	Step     int64 // -1: the name does not say
	Files    []string
	Bytes    int64
	ModTime  time.Time
	Complete bool
	Why      string
}

// Evidence is what infra/framework may go by; see framework.Evidence.
type Evidence struct {
	Renamed func(name string) bool
	Settled bool
	Writers []string
}

// Scanner finds the checkpoints in a directory (infra/framework). Units come in order, oldest first.
type Scanner interface {
	Name() string
	Scan(dir string, ev Evidence) ([]Unit, error)
}

// stamp tells one version of a unit from the next of the same name.
type stamp struct {
	modTime time.Time
	bytes   int64
}

func (u Unit) stamp() stamp { return stamp{u.ModTime, u.Bytes} }
