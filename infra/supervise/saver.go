package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

// saver finds complete checkpoints in the directory and makes them durable, newest first, one at a
// time. One goroutine (run) does the work; the other methods may be called from any.
type saver struct {
	dir      string
	scanner  Scanner
	watcher  *Watcher
	transfer Transfer
	writers  func() []string // files that the job has open for writing
	log      *slog.Logger

	cost    time.Duration // of the last scan; belongs to run
	kick    chan struct{}
	flushes chan chan error
	durable chan saved // one value for each checkpoint that became durable, and for the error that ended the saver

	mu      sync.Mutex
	hold    Hold // nil: not protected yet
	base    *handlers.Ref
	known   map[string]stamp  // units that need no look any more: there at the start, committed, or passed over
	renamed map[string]stamp  // what was renamed into place, as it was then
	newest  *saved            // newest complete unit seen since the start
	steps   map[int64]version // what this attempt commits under which step
	done    map[int64]bool    // steps that are durable
	last    int64             // largest step known
}

// version is one version of one unit.
type version struct {
	name string
	stamp
}

func (u Unit) version() version { return version{u.Name, u.stamp()} }

// answers reports whether s was saved after somebody asked at the time since. The tolerance is for
// file systems whose clock is not this machine's.
func (s saved) answers(since time.Time) bool {
	const tolerance = 2 * time.Second
	return !s.seen.Before(since) && s.unit.ModTime.After(since.Add(-tolerance))
}

// saved is a complete checkpoint and what became of it.
type saved struct {
	unit    Unit
	step    int64
	seen    time.Time // when it was first seen complete
	durable bool
	took    time.Duration // from seen to durable
	err     error         // handlers.ErrSuperseded: nothing this attempt writes counts any more
}

const (
	// rescan is how often a directory with an incomplete checkpoint is looked at without an event.
	rescan = 200 * time.Millisecond
	// fresh is how long after its last change an incomplete checkpoint is expected to become complete.
	fresh = 30 * time.Second
	// retryMin and retryMax bound the pause between two tries to upload.
	retryMin, retryMax = 200 * time.Millisecond, 10 * time.Second
)

func newSaver(dir string, scanner Scanner, watcher *Watcher, transfer Transfer, writers func() []string, log *slog.Logger) *saver {
	return &saver{
		dir: dir, scanner: scanner, watcher: watcher, transfer: transfer, writers: writers, log: log,
		kick: make(chan struct{}, 1), flushes: make(chan chan error), durable: make(chan saved, 16),
		known: map[string]stamp{}, renamed: map[string]stamp{}, steps: map[int64]version{}, done: map[int64]bool{}, last: -1,
	}
}

// protect gives the saver the hold through which it commits. What is complete already is committed next.
func (s *saver) protect(hold Hold, from resume) {
	s.mu.Lock()
	s.hold, s.base = hold, from.ref
	if from.path != "" {
		s.last = max(s.last, from.step)
	}
	if from.adopted != nil {
		s.steps[from.step], s.done[from.step] = from.adopted.version(), true
	}
	s.mu.Unlock()
	s.look()
}

// ignore marks units as not worth a look: they were there before the child started.
func (s *saver) ignore(units []Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range units {
		s.known[u.Name] = u.stamp()
		s.last = max(s.last, u.Step)
	}
}

// look asks for a scan now.
func (s *saver) look() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// state returns the newest complete checkpoint since the start, nil if there was none.
func (s *saver) state() *saved {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return nil
	}
	newest := *s.newest
	return &newest
}

// run works until ctx ends. It returns what it was doing as soon as ctx allows.
func (s *saver) run(ctx context.Context) {
	defer func() { _ = s.watcher.Close() }()
	s.warnPolling()
	alive := time.NewTicker(time.Second)
	defer alive.Stop()
	watched, _ := os.Stat(s.dir)
	var due <-chan time.Time
	var rested time.Time // no scan before, so that a busy directory costs little
	for {
		select {
		case <-ctx.Done():
			return
		case c, ok := <-s.watcher.Events():
			if !ok || c.Gone {
				watched = s.rewatch(ctx)
			} else {
				s.note(c)
			}
			if due == nil {
				due = time.After(time.Until(rested))
			}
			continue
		case <-alive.C: // a directory that something in it keeps open is removed without an event
			if now, err := os.Stat(s.dir); err == nil && os.SameFile(now, watched) {
				continue
			}
			watched = s.rewatch(ctx)
		case <-s.kick:
		case <-due:
		case done := <-s.flushes:
			done <- s.flushAll(ctx)
			continue
		}
		due = nil
		pending, err := s.sweep(ctx)
		if errors.Is(err, handlers.ErrSuperseded) {
			s.report(ctx, saved{err: err})
			return
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("cannot make the newest checkpoint durable; trying again", "dir", s.dir, "error", err)
			pending = true
		}
		rest := min(20*s.cost, time.Second)
		if rested = time.Now().Add(rest); pending {
			due = time.After(max(rescan, rest))
		}
	}
}

// rewatch watches the directory anew after it was removed or replaced. What was renamed into the old
// one proves nothing about the new one.
func (s *saver) rewatch(ctx context.Context) os.FileInfo {
	s.log.Warn("the checkpoint directory was removed or replaced; watching for it to come back", "dir", s.dir)
	for {
		select {
		case <-ctx.Done():
			return nil
		case done := <-s.flushes:
			done <- s.flushAll(ctx)
		case <-time.After(rescan):
		}
		now, err := os.Stat(s.dir)
		if err != nil {
			continue
		}
		watcher, err := WatchDir(s.dir)
		if err != nil {
			continue
		}
		_ = s.watcher.Close()
		s.mu.Lock()
		clear(s.renamed)
		s.mu.Unlock()
		s.watcher = watcher
		s.warnPolling()
		return now
	}
}

func (s *saver) warnPolling() {
	if why := s.watcher.Polling(); why != "" {
		s.log.Warn("the checkpoint directory can only be polled: what is renamed into place is not seen to be", "dir", s.dir, "why", why)
	}
}

// flush makes durable what is complete by now. The job must have ended: what is incomplete stays so.
func (s *saver) flush(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case s.flushes <- done:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", handlers.ErrUnavailable, context.Cause(ctx))
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", handlers.ErrUnavailable, context.Cause(ctx))
	}
}

func (s *saver) flushAll(ctx context.Context) error {
	for len(s.watcher.Events()) > 0 {
		s.note(<-s.watcher.Events())
	}
	for {
		before := s.state()
		if _, err := s.sweep(ctx); err != nil {
			return err
		}
		after := s.state()
		if after == nil || before != nil && before.unit.version() == after.unit.version() && before.durable == after.durable {
			return nil
		}
	}
}

// note remembers what a change proves.
func (s *saver) note(c Change) {
	if !c.Renamed {
		return
	}
	info, err := os.Lstat(filepath.Join(s.dir, c.Name))
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renamed[c.Name] = stamp{info.ModTime(), info.Size()}
}

// inPlace reports whether name was renamed into place and, if it is a file, not written to since.
func (s *saver) inPlace(name string) bool {
	s.mu.Lock()
	then, ok := s.renamed[name]
	s.mu.Unlock()
	if !ok {
		return false
	}
	info, err := os.Lstat(filepath.Join(s.dir, name))
	return err == nil && (info.IsDir() || then == stamp{info.ModTime(), info.Size()})
}

// sweep scans once and commits what is new. pending: something is under way in the directory.
func (s *saver) sweep(ctx context.Context) (pending bool, err error) {
	started := time.Now()
	units, err := s.scan(false)
	s.cost = time.Since(started)
	if err != nil {
		return true, err
	}
	var found []Unit
	numbered := slices.ContainsFunc(units, func(u Unit) bool { return u.Step >= 0 })
	s.mu.Lock()
	for _, u := range units {
		switch {
		case numbered && u.Step < 0: // best, last: copies or links of what has a number
		case s.known[u.Name] == u.stamp():
		case !u.Complete:
			pending = pending || time.Since(u.ModTime) < fresh
		default:
			found = append(found, u)
		}
	}
	if len(found) == 0 {
		s.mu.Unlock()
		return pending, nil
	}
	unit := found[len(found)-1]
	for _, u := range found[:len(found)-1] { // the newest one is worth the window
		s.known[u.Name] = u.stamp()
	}
	if s.newest == nil || s.newest.unit.version() != unit.version() {
		s.newest = &saved{unit: unit, step: s.number(unit), seen: time.Now()}
	}
	step := s.newest.step
	s.last = max(s.last, step)
	hold := s.hold
	s.mu.Unlock()
	if hold == nil {
		return true, nil
	}
	if err := s.commit(ctx, hold, unit, step); err != nil {
		return true, err
	}
	s.look() // something newer may have come meanwhile
	return pending, nil
}

// number returns the step of a unit: what its name or content says, unless another version has that
// number already or nothing says one; then the next.
func (s *saver) number(u Unit) int64 {
	have, taken := s.steps[u.Step]
	if taken && have != u.version() {
		s.log.Warn("another checkpoint has this step already; it gets the next number", "checkpoint", u.Name, "step", u.Step, "number", s.last+1)
	}
	if u.Step < 0 || taken && have != u.version() {
		return s.last + 1
	}
	return u.Step
}

// scan lists the units in the directory. settled: nobody is writing there.
func (s *saver) scan(settled bool) ([]Unit, error) {
	var writers []string
	if !settled {
		writers = s.writers()
	}
	return s.scanner.Scan(s.dir, Evidence{Settled: settled, Writers: writers, Renamed: s.inPlace})
}

// commit captures one unit and uploads it until it is durable, superseded, or pulled away.
func (s *saver) commit(ctx context.Context, hold Hold, unit Unit, step int64) error {
	s.mu.Lock()
	done := s.done[step]
	s.steps[step] = unit.version()
	seen := s.newest.seen
	base := s.base
	s.mu.Unlock()
	if done {
		s.finish(unit, step, true)
		return nil
	}
	captured, err := Capture(s.dir, unit.Name, unit.Files)
	if err != nil {
		s.forget(step)
		return err
	}
	defer func() {
		if err := captured.Release(); err != nil {
			s.log.Warn("cannot remove a capture", "dir", s.dir, "error", err)
		}
	}()
	draft := handlers.Manifest{Step: step, Framework: s.scanner.Name(), Unit: unit.Name, Base: base}
	pause := retryMin
	for {
		_, err := hold.Commit(ctx, draft, func(ctx context.Context, prefix string) ([]handlers.File, error) {
			files, err := s.transfer.Upload(ctx, prefix, captured.Sources())
			if err != nil {
				return nil, err
			}
			return files, captured.Verify()
		})
		switch {
		case err == nil:
			result := saved{unit: unit, step: step, seen: seen, durable: true, took: time.Since(seen)}
			s.finish(unit, step, true)
			s.log.Info("checkpoint is durable", "checkpoint", unit.Name, "step", step, "bytes", unit.Bytes, "took", result.took.Round(time.Millisecond))
			s.report(ctx, result)
			return nil
		case errors.Is(err, handlers.ErrSuperseded), ctx.Err() != nil:
			return err
		case errors.Is(err, ErrChanged):
			s.forget(step)
			return fmt.Errorf("%s changed while it was uploaded; it is looked at again: %w", unit.Name, err)
		case errors.Is(err, handlers.ErrInvalid), errors.Is(err, handlers.ErrPermanent):
			s.log.Error("this checkpoint cannot be made durable", "checkpoint", unit.Name, "step", step, "error", err)
			s.finish(unit, step, false)
			return nil
		}
		s.log.Warn("checkpoint is not durable yet; trying again", "checkpoint", unit.Name, "step", step, "in", pause, "error", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMax)
	}
}

// finish notes that a unit needs no look any more.
func (s *saver) finish(unit Unit, step int64, durable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[unit.Name] = unit.stamp()
	if durable {
		s.done[step] = true
	}
	if s.newest != nil && s.newest.unit.version() == unit.version() && s.newest.step == step {
		s.newest.durable = durable
	}
}

// forget gives a step free again: nothing was committed under it.
func (s *saver) forget(step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.steps, step)
}

func (s *saver) report(ctx context.Context, r saved) {
	select {
	case s.durable <- r:
	case <-ctx.Done():
	}
}

// newestOf returns the last complete unit of a scan, nil if there is none.
func newestOf(units []Unit) *Unit {
	for _, u := range slices.Backward(units) {
		if u.Complete {
			return &u
		}
	}
	return nil
}
