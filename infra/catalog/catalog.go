// Package catalog keeps jobs, checkpoints and machines as documents in a blob.Store: which keys
// there are, in which order they are written, and what an ambiguous write means. What a record may
// become is decided in handlers; the bytes of a checkpoint are moved by infra/transfer.
//
//	jobs/<job>/job.json                               the record, compare-and-swap
//	jobs/<job>/checkpoints/<attempt>-<step>/          state.json, data/<rank>/<path>, node-<rank>.json, manifest.json
//	live/<job>/<attempt>-<rank>                       its age is the heartbeat
//	outbox/<job>/<seq>                                a transition that wrote events
//	nodes/<provider>/<instance>.json                  which jobs registered there, and its notices
//	expiry/<hour>/<job>/<attempt>-<step>.json         due index of the retention sweep
package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// Catalog implements handlers.Jobs, handlers.Traces and handlers.Nodes, and is where an Attempt
// comes from. Safe for concurrent use by any number of processes.
type Catalog struct {
	Store blob.Store
	Now   func() time.Time // for timestamps that people read; ages come from the storage's clock
}

var (
	_ handlers.Jobs   = (*Catalog)(nil)
	_ handlers.Traces = (*Catalog)(nil)
	_ handlers.Nodes  = (*Catalog)(nil)
)

// maxTries bounds how often one update reads and decides again.
const maxTries = 12

func jobKey(job string) string { return "jobs/" + job + "/job.json" }

func liveKey(job string, attempt, rank int) string {
	return "live/" + job + "/" + strconv.Itoa(attempt) + "-" + strconv.Itoa(rank)
}

func outboxKey(job string, seq int) string { return "outbox/" + job + "/" + strconv.Itoa(seq) }

// Get implements handlers.Jobs.
func (c *Catalog) Get(ctx context.Context, job string) (handlers.Job, error) {
	j, _, err := c.read(ctx, job)
	return j, err
}

// Create writes the record of a new job. ErrConflict if there is one of that name.
func (c *Catalog) Create(ctx context.Context, job handlers.Job) error {
	return c.write(ctx, handlers.Job{}, job, blob.Cond{Absent: true})
}

// Update implements handlers.Jobs.
func (c *Catalog) Update(ctx context.Context, job string, decide func(handlers.Job) (handlers.Job, error)) (handlers.Job, error) {
	var last error
	for range maxTries {
		j, version, err := c.read(ctx, job)
		if err != nil {
			return j, err
		}
		next, err := decide(j)
		if err != nil {
			return j, err
		}
		last = c.write(ctx, j, next, blob.Cond{Version: version})
		switch handlers.Class(last) {
		case nil:
			return next, nil
		case handlers.ErrConflict, handlers.ErrUnavailable:
			// Moved, or maybe written after all: the next reading tells.
		default:
			return j, last
		}
		if ctx.Err() != nil {
			return j, last
		}
	}
	return handlers.Job{}, fmt.Errorf("update job %s: %w", job, last)
}

func (c *Catalog) read(ctx context.Context, job string) (handlers.Job, blob.Version, error) {
	var j handlers.Job
	version, err := readDoc(ctx, c.Store, jobKey(job), &j)
	if err != nil {
		return j, "", fmt.Errorf("read job %s: %w", job, err)
	}
	if j.Format != 1 {
		return j, "", fmt.Errorf("%w: job %s is of format %d; use a newer version of reprieve", handlers.ErrPermanent, job, j.Format)
	}
	return j, version, nil
}

// write leaves the traces first, so that whoever dies between any two steps is found by watch.
func (c *Catalog) write(ctx context.Context, prev, next handlers.Job, cond blob.Cond) error {
	if next.Attempt > prev.Attempt || len(next.Claims) > len(prev.Claims) { // a reservation may have aged
		for rank := range next.Nodes {
			if err := c.putMark(ctx, liveKey(next.Name, next.Attempt, rank)); err != nil {
				return err
			}
		}
	}
	if next.Seq > prev.Seq && len(next.Outbox) > 0 {
		if err := c.putMark(ctx, outboxKey(next.Name, next.Seq)); err != nil {
			return err
		}
	}
	return writeDoc(ctx, c.Store, jobKey(next.Name), next, cond)
}

func (c *Catalog) putMark(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := blob.PutBytes(ctx, c.Store, key, []byte("{}\n"), blob.Cond{})
	return err
}

// Published implements bus.Runner's Settle: the events of transitions that have been published
// leave their outboxes, and the marks of outboxes that are empty go. Events that are in no outbox
// are passed over.
func (c *Catalog) Published(ctx context.Context, evs []events.Event) error {
	ids, seqs := map[string][]string{}, map[string][]int{}
	for _, e := range evs {
		var data struct{ Seq int }
		if e.Source() != events.Source || json.Unmarshal(e.Data(), &data) != nil || data.Seq == 0 {
			continue
		}
		ids[e.Subject()] = append(ids[e.Subject()], e.ID())
		if !slices.Contains(seqs[e.Subject()], data.Seq) { // a transition may have several events
			seqs[e.Subject()] = append(seqs[e.Subject()], data.Seq)
		}
	}
	for job := range ids {
		j, err := c.Update(ctx, job, func(j handlers.Job) (handlers.Job, error) { return j.Published(ids[job]) })
		if err != nil && !errors.Is(err, handlers.ErrIgnored) {
			return err
		}
		if len(j.Outbox) > 0 {
			continue
		}
		for _, seq := range seqs[job] {
			if err := c.DropOutbox(ctx, handlers.OutboxMark{Job: job, Seq: seq}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Live implements handlers.Traces.
func (c *Catalog) Live(ctx context.Context) iter.Seq2[handlers.Heartbeat, error] {
	return func(yield func(handlers.Heartbeat, error) bool) {
		for page, err := range pages(ctx, c.Store, "live/") {
			if err != nil {
				yield(handlers.Heartbeat{}, err)
				return
			}
			for _, o := range page.Objects {
				if h, ok := parseLive(o.Key); ok {
					h.Age = page.Now.Sub(o.ModTime)
					if !yield(h, nil) {
						return
					}
				}
			}
		}
	}
}

// Touch implements handlers.Traces.
func (c *Catalog) Touch(ctx context.Context, h handlers.Heartbeat) error {
	return c.putMark(ctx, liveKey(h.Job, h.Attempt, h.Rank))
}

// DropLive implements handlers.Traces.
func (c *Catalog) DropLive(ctx context.Context, h handlers.Heartbeat) error {
	return c.Store.Delete(ctx, liveKey(h.Job, h.Attempt, h.Rank))
}

// Outboxes implements handlers.Traces.
func (c *Catalog) Outboxes(ctx context.Context) iter.Seq2[handlers.OutboxMark, error] {
	return func(yield func(handlers.OutboxMark, error) bool) {
		for o, err := range blob.All(ctx, c.Store, "outbox/") {
			if err != nil {
				yield(handlers.OutboxMark{}, err)
				return
			}
			job, seq, _ := strings.Cut(strings.TrimPrefix(o.Key, "outbox/"), "/")
			if n, err := strconv.Atoi(seq); err == nil && !yield(handlers.OutboxMark{Job: job, Seq: n}, nil) {
				return
			}
		}
	}
}

// DropOutbox implements handlers.Traces.
func (c *Catalog) DropOutbox(ctx context.Context, m handlers.OutboxMark) error {
	return c.Store.Delete(ctx, outboxKey(m.Job, m.Seq))
}

// Names lists the jobs, in order. One LIST a job, however many checkpoints it has.
func (c *Catalog) Names(ctx context.Context) iter.Seq2[string, error] {
	return children(ctx, c.Store, "jobs/")
}

// age returns how long ago a live object was put; found is false if it does not exist.
func (c *Catalog) age(ctx context.Context, job string, attempt, rank int) (age time.Duration, found bool, err error) {
	key := liveKey(job, attempt, rank)
	page, err := listPage(ctx, c.Store, key, "", 1)
	if err != nil {
		return 0, false, fmt.Errorf("look at the heartbeat of %s: %w", job, err)
	}
	if len(page.Objects) == 0 || page.Objects[0].Key != key {
		return 0, false, nil
	}
	return page.Now.Sub(page.Objects[0].ModTime), true, nil
}

func parseLive(key string) (handlers.Heartbeat, bool) {
	job, rest, _ := strings.Cut(strings.TrimPrefix(key, "live/"), "/")
	attempt, rank, _ := strings.Cut(rest, "-")
	a, errA := strconv.Atoi(attempt)
	r, errR := strconv.Atoi(rank)
	return handlers.Heartbeat{Job: job, Attempt: a, Rank: r}, errA == nil && errR == nil
}
