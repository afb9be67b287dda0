package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

// resume is what the child is told about where to go on.
type resume struct {
	path string // absolute; empty: start from nothing
	step int64
	ref  *handlers.Ref // what the attempt was restored from
	// adopted is what the user had in the directory, committed by this attempt.
	adopted *Unit
}

// restore brings the newest checkpoint that verifies into the directory and seals the attempts
// before this one. Where the job has no checkpoint yet, what is in the directory is the user's: nothing is moved,
// and the newest complete checkpoint there becomes the job's first.
func (s *Supervisor) restore(ctx context.Context, hold Hold) (resume, error) {
	var candidates, found []handlers.Checkpoint
	err := s.retry(ctx, "list the job's checkpoints", func() (err error) {
		candidates, found, err = hold.Candidates(ctx)
		return err
	})
	if err != nil {
		return resume{}, err
	}
	base, manifest, err := s.fetch(ctx, hold, candidates)
	if err != nil {
		return resume{}, err
	}
	var ref *handlers.Ref
	if base != nil {
		ref = &base.Ref
	}
	// A store that conflicts or is away for a moment does not make the download worthless.
	err = s.retry(ctx, "record what was restored", func() error {
		_, err := hold.Seal(ctx, ref, found)
		return err
	})
	if err != nil {
		return resume{}, err
	}
	if base != nil {
		return resume{path: filepath.Join(s.Dir, filepath.FromSlash(manifest.Unit)), step: base.Step, ref: ref}, nil
	}
	if len(candidates) > 0 {
		return resume{}, nil
	}
	return s.adoptLocal(ctx, hold)
}

// fetch downloads the newest candidate that verifies. All rotten: nil, and the job starts from nothing.
func (s *Supervisor) fetch(ctx context.Context, hold Hold, candidates []handlers.Checkpoint) (*handlers.Checkpoint, handlers.Manifest, error) {
	for i, c := range candidates {
		var m handlers.Manifest
		started := time.Now()
		err := s.retry(ctx, "restore checkpoint "+c.String(), func() (err error) {
			if m, err = hold.Manifest(ctx, c.Ref); errors.Is(err, handlers.ErrNotFound) {
				return fmt.Errorf("%w: its manifest is missing", handlers.ErrRotten)
			}
			if err != nil {
				return err
			}
			if err := s.quarantine(m.Unit); err != nil {
				return err
			}
			return s.Transfer.Download(ctx, c, m, s.Dir)
		})
		switch {
		case err == nil:
			s.Log.Info("restored", "checkpoint", c.String(), "step", c.Step, "bytes", c.Bytes, "took", time.Since(started).Round(time.Millisecond))
			return &c, m, nil
		case errors.Is(err, handlers.ErrRotten):
			next := "starting from nothing"
			if i+1 < len(candidates) {
				next = "using the one before, step " + strconv.FormatInt(candidates[i+1].Step, 10)
			}
			s.Log.Error("checkpoint does not verify: "+next, "checkpoint", c.String(), "step", c.Step, "error", err)
		default:
			return nil, m, err
		}
	}
	return nil, handlers.Manifest{}, nil
}

// quarantine moves every checkpoint in the directory but keep aside: a trainer that picks the newest one by itself must find the one
// that was restored. Nothing is deleted.
func (s *Supervisor) quarantine(keep string) error {
	units, err := s.Scanner.Scan(s.Dir, Evidence{Settled: true})
	if err != nil {
		return err
	}
	for _, u := range units {
		if u.Name == keep {
			continue // the download itself moves it aside
		}
		aside := filepath.Join(s.Dir, ".reprieve", "quarantine", time.Now().UTC().Format("20060102T150405.000000000Z"))
		if err := os.MkdirAll(aside, 0o755); err != nil {
			return fmt.Errorf("%w: make room in %s: %w", handlers.ErrInvalid, s.Dir, err)
		}
		if err := os.Rename(filepath.Join(s.Dir, u.Name), filepath.Join(aside, u.Name)); err != nil {
			return fmt.Errorf("%w: move %s aside: %w", handlers.ErrInvalid, u.Name, err)
		}
		s.Log.Info("moved aside: it is not of this branch of the job", "checkpoint", u.Name, "to", aside)
	}
	return nil
}

// adoptLocal commits the newest complete checkpoint that the user had in the directory before the
// job's first attempt.
func (s *Supervisor) adoptLocal(ctx context.Context, hold Hold) (resume, error) {
	units, err := s.Scanner.Scan(s.Dir, Evidence{Settled: true})
	if err != nil {
		return resume{}, err
	}
	unit := newestOf(units)
	if unit == nil {
		return resume{}, nil
	}
	step := max(unit.Step, 0)
	captured, err := Capture(s.Dir, unit.Name, unit.Files)
	if err != nil {
		return resume{}, err
	}
	defer func() { _ = captured.Release() }()
	err = s.retry(ctx, "make "+unit.Name+" durable", func() error {
		_, err := hold.Commit(ctx, handlers.Manifest{Step: step, Framework: s.Scanner.Name(), Unit: unit.Name},
			func(ctx context.Context, prefix string) ([]handlers.File, error) {
				return s.Transfer.Upload(ctx, prefix, captured.Sources())
			})
		return err
	})
	if err != nil {
		return resume{}, err
	}
	s.Log.Info("what was in the directory is the job's first checkpoint", "checkpoint", unit.Name, "step", step)
	return resume{path: filepath.Join(s.Dir, unit.Name), step: step, adopted: unit}, nil
}

// retry tries f until it works, or fails in a way that another try cannot mend, or storeTries are spent.
func (s *Supervisor) retry(ctx context.Context, what string, f func() error) error {
	pause := retryMin
	var err error
	for range storeTries {
		if err = f(); err == nil {
			return nil
		}
		if class := handlers.Class(err); ctx.Err() != nil || class != handlers.ErrUnavailable && class != handlers.ErrConflict {
			return err
		}
		s.Log.Warn("cannot "+what+"; trying again", "in", pause, "error", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMax)
	}
	return fmt.Errorf("%s: %w", what, err)
}
