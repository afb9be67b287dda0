package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/catalog"
	"github.com/reprieve-dev/reprieve/infra/framework"
	"github.com/reprieve-dev/reprieve/infra/supervise"
	"github.com/reprieve-dev/reprieve/infra/transfer"
)

// hold is a catalog.Attempt as the supervisor sees it.
type hold struct {
	*catalog.Attempt
	catalog *catalog.Catalog
	job     string
}

// Manifest implements supervise.Checkpoints.
func (h hold) Manifest(ctx context.Context, ref handlers.Ref) (handlers.Manifest, error) {
	return h.catalog.Manifest(ctx, h.job, ref)
}

// scannerAdapter is a framework as the supervisor sees it.
type scannerAdapter struct{ framework.Framework }

// Scan implements supervise.Scanner.
func (a scannerAdapter) Scan(dir string, ev supervise.Evidence) ([]supervise.Unit, error) {
	found, err := a.Framework.Scan(dir, framework.Evidence(ev))
	units := make([]supervise.Unit, len(found))
	for i, u := range found {
		units[i] = supervise.Unit(u)
	}
	return units, err
}

// transferAdapter is infra/transfer as the supervisor sees it.
type transferAdapter struct{ opener *opener }

// Upload implements supervise.Transfer.
func (a *transferAdapter) Upload(ctx context.Context, prefix string, files []supervise.Source) ([]handlers.File, error) {
	c, err := a.opener.open(ctx)
	if err != nil {
		return nil, err
	}
	sources := make([]transfer.Source, len(files))
	for i, f := range files {
		sources[i] = transfer.Source(f)
	}
	return transfer.Upload(ctx, c.Store, prefix, sources)
}

// Download implements supervise.Transfer.
func (a *transferAdapter) Download(ctx context.Context, cp handlers.Checkpoint, m handlers.Manifest, dir string) error {
	c, err := a.opener.open(ctx)
	if err != nil {
		return err
	}
	return download(ctx, c, cp, m, dir)
}

// Clean implements supervise.Transfer.
func (a *transferAdapter) Clean(dir string) error { return transfer.CleanRestores(dir) }

func download(ctx context.Context, c *catalog.Catalog, cp handlers.Checkpoint, m handlers.Manifest, dir string) error {
	return transfer.Download(ctx, c.Store, func(f handlers.File) string { return catalog.DataKey(cp.Key, f) }, m, dir)
}

// Restored is what Restore did.
type Restored struct {
	Path       string `json:"path"`
	Step       int64  `json:"step"`
	Checkpoint string `json:"checkpoint"`
	Bytes      int64  `json:"bytes"`
	Why        string `json:"why"`
}

// Restore puts the newest checkpoint of job that verifies (or that of step, if it is not negative)
// into dir. ErrNotFound if there is none, ErrConflict if a
// supervisor works in dir.
func Restore(ctx context.Context, c *catalog.Catalog, job handlers.Job, dir string, step int64, log *slog.Logger) (Restored, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Restored{}, fmt.Errorf("%w: DIR: %w", handlers.ErrInvalid, err)
	}
	lock, err := supervise.LockDir(dir) // not under a running job
	if err != nil {
		return Restored{}, err
	}
	defer func() { _ = lock.Close() }()
	why := "the newest that the job lists"
	for _, cp := range job.Candidates(nil) {
		if step >= 0 && cp.Step != step {
			continue
		}
		m, err := c.Manifest(ctx, job.Name, cp.Ref)
		if err == nil {
			err = download(ctx, c, cp, m, dir)
		}
		switch {
		case err == nil:
			if step >= 0 {
				why = "the step asked for"
			}
			return Restored{Path: filepath.Join(dir, filepath.FromSlash(m.Unit)), Step: cp.Step, Checkpoint: cp.String(), Bytes: cp.Bytes, Why: why}, nil
		case errors.Is(err, handlers.ErrRotten), errors.Is(err, handlers.ErrNotFound):
			log.Error("checkpoint does not verify; looking for the one before", "checkpoint", cp.String(), "step", cp.Step, "error", err)
			why = fmt.Sprintf("the newest that verifies (step %d does not)", cp.Step)
		default:
			return Restored{}, err
		}
	}
	if step >= 0 {
		return Restored{}, fmt.Errorf("%w: %s has no checkpoint of step %d that verifies; see `reprieve checkpoints list %s`", handlers.ErrNotFound, job.Name, step, job.Name)
	}
	return Restored{}, fmt.Errorf("%w: %s has no checkpoint that verifies", handlers.ErrNotFound, job.Name)
}
