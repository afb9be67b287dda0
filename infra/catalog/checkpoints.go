package catalog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// defaultTTL is how long after its commit a checkpoint is due for deletion.
const defaultTTL = 48 * time.Hour

// checkpointState is state.json. Only the committer creates it; absent means gone.
type checkpointState struct {
	Format int    `json:"format"` // 1
	State  string `json:"state"`  // live
	Writer string `json:"writer"` // claim
}

// expiryEntry is a hint for the retention sweep: look at this checkpoint in that hour.
type expiryEntry struct {
	Job     string       `json:"job"`
	UID     string       `json:"uid"`
	Ref     handlers.Ref `json:"ref"`
	Started time.Time    `json:"started"`
}

func checkpointPrefix(job string, ref handlers.Ref) string {
	return "jobs/" + job + "/checkpoints/" + ref.String() + "/"
}

// answerKey is the document in which one rank says which files it has put: a manifest of its own files.
func answerKey(prefix string, rank int) string {
	return prefix + "node-" + strconv.Itoa(rank) + ".json"
}

// DataKey is where the data of one file of a checkpoint lies.
func DataKey(key string, f handlers.File) string {
	return key + "data/" + strconv.Itoa(f.Node) + "/" + f.Path
}

// Commit makes a checkpoint durable: index entry, state.json, data, this rank's answer, manifest,
// and then the record's list. It is durable when Commit returns nil, not before. draft says what it
// is (Step, Framework, Unit, Base); data puts its files below prefix, as prefix/<path>, and returns
// them with their digests. After an error Commit may be called again, and data overwrites what lies
// there; but once a call has got as far as this rank's answer, later ones of the step join it, and
// data is not called: what may count already is never overwritten. What an error leaves behind
// never counts and is found by the sweep.
func (a *Attempt) Commit(ctx context.Context, draft handlers.Manifest, data func(ctx context.Context, prefix string) ([]handlers.File, error)) (handlers.Checkpoint, error) {
	c, ref := a.catalog, handlers.Ref{Attempt: a.number, Step: draft.Step}
	prefix := checkpointPrefix(a.job, ref)
	started := c.Now()
	hour := started.Add(defaultTTL).UTC().Format("2006010215")
	err := writeDoc(ctx, c.Store, "expiry/"+hour+"/"+a.job+"/"+ref.String()+".json",
		expiryEntry{Job: a.job, UID: a.uid, Ref: ref, Started: started.UTC()}, blob.Cond{})
	if err != nil {
		return handlers.Checkpoint{}, err
	}
	err = createDoc(ctx, c.Store, prefix+"state.json", checkpointState{Format: 1, State: "live", Writer: a.claim.ID},
		func(have checkpointState) bool { return have.State == "live" && have.Writer == a.claim.ID })
	if err != nil {
		return handlers.Checkpoint{}, err
	}
	var manifest handlers.Manifest
	_, err = readDoc(ctx, c.Store, answerKey(prefix, a.claim.Rank), &manifest)
	if errors.Is(err, handlers.ErrNotFound) {
		manifest, err = a.answer(ctx, draft, prefix, data)
	}
	if err != nil {
		return handlers.Checkpoint{}, err
	}
	if err := createDoc(ctx, c.Store, prefix+"manifest.json", manifest, manifest.Identical); err != nil {
		return handlers.Checkpoint{}, err
	}
	entry, err := c.whole(ctx, a.job, a.uid, ref)
	if err != nil {
		return entry, err
	}
	_, err = a.update(ctx, func(j handlers.Job) (handlers.Job, error) { return j.Commit(a.claim.ID, entry, c.Now()) })
	return entry, err
}

// answer has the data put, and says so in this rank's document.
func (a *Attempt) answer(ctx context.Context, draft handlers.Manifest, prefix string, data func(ctx context.Context, prefix string) ([]handlers.File, error)) (handlers.Manifest, error) {
	files, err := data(ctx, prefix+"data/"+strconv.Itoa(a.claim.Rank))
	if err != nil {
		return draft, err
	}
	m := draft
	m.Format, m.Job, m.UID, m.Attempt = 1, a.job, a.uid, a.number
	m.Files, m.Writer, m.Written = files, a.claim.ID, a.catalog.Now().UTC()
	return m, createDoc(ctx, a.catalog.Store, answerKey(prefix, a.claim.Rank), m, m.Identical)
}

// Candidates returns what this attempt may be restored from, newest first, and the manifests found
// that Seal may adopt.
func (a *Attempt) Candidates(ctx context.Context) (candidates, found []handlers.Checkpoint, err error) {
	job, err := a.catalog.Get(ctx, a.job)
	if err != nil {
		return nil, nil, err
	}
	for attempt := job.Sealed + 1; attempt < job.Attempt; attempt++ {
		prefix := "jobs/" + a.job + "/checkpoints/" + strconv.Itoa(attempt) + "-"
		for step, err := range children(ctx, a.catalog.Store, prefix) {
			if err != nil {
				return nil, nil, err
			}
			ref, err := handlers.ParseRef(strconv.Itoa(attempt) + "-" + step)
			if err != nil {
				continue
			}
			c, err := a.catalog.complete(ctx, job, ref)
			switch {
			case err == nil:
				found = append(found, c)
			case errors.Is(err, handlers.ErrNotFound), errors.Is(err, handlers.ErrRotten), errors.Is(err, errGarbled):
				// Not whole: it never counted.
			default:
				return nil, nil, err
			}
		}
	}
	return job.Candidates(found), found, nil
}

// Seal records what this attempt was restored from and shuts older attempts out; see
// handlers.Job.Seal. No child may start before it has returned nil.
func (a *Attempt) Seal(ctx context.Context, base *handlers.Ref, found []handlers.Checkpoint) (handlers.Job, error) {
	return a.update(ctx, func(j handlers.Job) (handlers.Job, error) {
		return j.Seal(a.claim.ID, base, found, a.catalog.Now())
	})
}

// Manifest reads the manifest of a checkpoint. ErrNotFound if it is not whole, ErrRotten if it is
// not a manifest, ErrPermanent if a newer version wrote it.
func (c *Catalog) Manifest(ctx context.Context, job string, ref handlers.Ref) (handlers.Manifest, error) {
	var m handlers.Manifest
	key := checkpointPrefix(job, ref) + "manifest.json"
	_, err := readDoc(ctx, c.Store, key, &m)
	switch {
	case errors.Is(err, errGarbled), err == nil && m.Format < 1:
		return m, fmt.Errorf("%w: %s is not a manifest", handlers.ErrRotten, key)
	case err != nil:
		return m, fmt.Errorf("read the manifest of checkpoint %s: %w", ref, err)
	case m.Format > 1:
		return m, fmt.Errorf("%w: %s is of format %d; use a newer version of reprieve", handlers.ErrPermanent, key, m.Format)
	}
	return m, nil
}

// complete is whole for a checkpoint of an attempt that died: if every rank had answered and only
// the manifest is missing, it writes that first.
func (c *Catalog) complete(ctx context.Context, job handlers.Job, ref handlers.Ref) (handlers.Checkpoint, error) {
	entry, err := c.whole(ctx, job.Name, job.UID, ref)
	if !errors.Is(err, handlers.ErrNotFound) {
		return entry, err
	}
	prefix := checkpointPrefix(job.Name, ref)
	var union handlers.Manifest
	for rank := range job.Nodes {
		var answer handlers.Manifest // of the files of one rank
		if _, err := readDoc(ctx, c.Store, answerKey(prefix, rank), &answer); err != nil {
			return entry, err
		}
		if answer.UID != job.UID || answer.Ref() != ref {
			return entry, fmt.Errorf("%w: %s is of another job", handlers.ErrNotFound, answerKey(prefix, rank))
		}
		answer.Files = append(union.Files, answer.Files...)
		union = answer
	}
	if err := createDoc(ctx, c.Store, prefix+"manifest.json", union, union.Identical); err != nil {
		return entry, err
	}
	return c.whole(ctx, job.Name, job.UID, ref)
}

// whole returns the entry of a checkpoint whose manifest exists, with the storage's time of it.
func (c *Catalog) whole(ctx context.Context, job, uid string, ref handlers.Ref) (handlers.Checkpoint, error) {
	prefix := checkpointPrefix(job, ref)
	m, err := c.Manifest(ctx, job, ref)
	if err != nil {
		return handlers.Checkpoint{}, err
	}
	if m.UID != uid || m.Ref() != ref {
		return handlers.Checkpoint{}, fmt.Errorf("%w: %smanifest.json is of another job", handlers.ErrNotFound, prefix)
	}
	info, err := c.Store.Stat(ctx, prefix+"manifest.json")
	if err != nil {
		return handlers.Checkpoint{}, fmt.Errorf("look at the manifest of checkpoint %s: %w", ref, err)
	}
	return m.Entry(prefix, info.ModTime), nil
}
