package handlers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// ErrRotten: a checkpoint's data is not what its manifest says, or is missing, also on a second
// reading. Only this makes a restore fall back to an older one. It is an ErrPermanent.
var ErrRotten = fmt.Errorf("%w: rotten", ErrPermanent)

// Ref names a checkpoint of a job: the attempt that wrote it and the training step it holds.
// References are ordered by attempt, then step, as numbers, never as text.
type Ref struct {
	Attempt int   `json:"attempt"`
	Step    int64 `json:"step"`
}

// Compare orders references: negative if r is older than other.
func (r Ref) Compare(other Ref) int {
	return cmp.Or(cmp.Compare(r.Attempt, other.Attempt), cmp.Compare(r.Step, other.Step))
}

// String is the form used in keys: <attempt>-<step>.
func (r Ref) String() string { return strconv.Itoa(r.Attempt) + "-" + strconv.FormatInt(r.Step, 10) }

// ParseRef reads what String writes, and nothing else.
func ParseRef(s string) (Ref, error) {
	attempt, step, _ := strings.Cut(s, "-")
	a, errA := strconv.Atoi(attempt)
	n, errN := strconv.ParseInt(step, 10, 64)
	if r := (Ref{Attempt: a, Step: n}); errA == nil && errN == nil && a > 0 && n >= 0 && r.String() == s {
		return r, nil
	}
	return Ref{}, fmt.Errorf("%w: checkpoint %q: write it as <attempt>-<step>, such as 2-1500", ErrInvalid, s)
}

// Checkpoint is one entry of the record's list of committed checkpoints.
type Checkpoint struct {
	Ref
	Key       string    `json:"key"`   // prefix in the store; manifest.json is below it
	Bytes     int64     `json:"bytes"` // sum of the files' sizes
	Files     int       `json:"files"`
	Base      *Ref      `json:"base,omitempty"` // what the attempt that wrote it had been restored from
	Committed time.Time `json:"committed"`      // the storage's clock, when the manifest was written
}

// Manifest is the document manifest.json, create-only and written last: a checkpoint is whole if
// and only if its manifest exists. It counts only once the job record lists it.
type Manifest struct {
	Format    int       `json:"format"` // 1
	Job       string    `json:"job"`
	UID       string    `json:"uid"`
	Attempt   int       `json:"attempt"`
	Step      int64     `json:"step"`
	Framework string    `json:"framework"`
	Unit      string    `json:"unit"` // name of the checkpoint in the trainer's directory: a file or a directory
	Files     []File    `json:"files"`
	Base      *Ref      `json:"base,omitempty"`
	Writer    string    `json:"writer"` // claim of the process that wrote it
	Written   time.Time `json:"written"`
}

// File is one file of a checkpoint, stored as the trainer wrote it.
type File struct {
	Path   string    `json:"path"` // relative to the checkpoint directory, with slashes
	Node   int       `json:"node"` // rank that uploaded it
	Size   int64     `json:"size"` // bytes
	SHA256 string    `json:"sha256"`
	Mode   uint32    `json:"mode"` // permission bits
	MTime  time.Time `json:"mtime"`
}

// Ref returns the checkpoint that m describes.
func (m Manifest) Ref() Ref { return Ref{Attempt: m.Attempt, Step: m.Step} }

// Bytes is the sum of the files' sizes.
func (m Manifest) Bytes() int64 {
	var sum int64
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// Identical reports whether m and other hold the same checkpoint: job, attempt, step, and the
// files' paths, sizes and digests. Who wrote it and when does not matter.
func (m Manifest) Identical(other Manifest) bool {
	return m.Job == other.Job && m.UID == other.UID && m.Ref() == other.Ref() &&
		slices.EqualFunc(m.Files, other.Files, func(a, b File) bool {
			return a.Path == b.Path && a.Node == b.Node && a.Size == b.Size && a.SHA256 == b.SHA256
		})
}

// Entry is what the record lists of m, whose data lies below key.
func (m Manifest) Entry(key string, committed time.Time) Checkpoint {
	return Checkpoint{Ref: m.Ref(), Key: key, Bytes: m.Bytes(), Files: len(m.Files), Base: m.Base, Committed: committed.UTC()}
}

// Commit lists a checkpoint whose manifest the claimant has written: from here on it counts. An
// older step that was finished later is inserted. ErrIgnored if it is listed already.
func (j Job) Commit(claim string, c Checkpoint, now time.Time) (Job, error) {
	if !j.Current(claim) || c.Attempt != j.Attempt {
		return j, j.superseded()
	}
	if j.Sealed != j.Attempt-1 {
		return j, fmt.Errorf("%w: attempt %d has to seal the one before it first", ErrPermanent, j.Attempt)
	}
	if j.lists(c.Ref) {
		return j, fmt.Errorf("%w: checkpoint %s is listed already", ErrIgnored, c.Ref)
	}
	j = j.begin(now)
	j.Checkpoints = insert(j.Checkpoints, c)
	j.Fruitless = 0
	return j.emit(events.TypeCheckpointCommitted, events.Checkpoint{
		Job: j.Name, UID: j.UID, Attempt: j.Attempt, Seq: j.Seq, Node: j.node(), Step: &c.Step, Key: c.Key, Bytes: c.Bytes,
	}), nil
}

// Candidates are the checkpoints that the current attempt may be restored from, newest first: the
// record's list, and of the whole manifests found those of attempts above Sealed and below the
// current one (written, but their writer died before it could list them).
func (j Job) Candidates(found []Checkpoint) []Checkpoint {
	list := slices.Clone(j.Checkpoints)
	for _, c := range found {
		if c.Attempt > j.Sealed && c.Attempt < j.Attempt {
			list = insert(list, c)
		}
	}
	slices.Reverse(list)
	return list
}

// Seal is what the current attempt does once, before its child starts: it says what it was
// restored from (base; nil is nothing), adopts the manifests found of the unsealed attempts up to
// base, cuts the list behind base, and shuts those attempts out for good. ErrIgnored if it is done,
// or if this is attempt 1: there is nothing before it.
func (j Job) Seal(claim string, base *Ref, found []Checkpoint, now time.Time) (Job, error) {
	if !j.Current(claim) {
		return j, j.superseded()
	}
	if j.Sealed == j.Attempt-1 {
		return j, fmt.Errorf("%w: sealed already", ErrIgnored)
	}
	kept := j.Candidates(found)
	slices.Reverse(kept)
	kept = slices.DeleteFunc(kept, func(c Checkpoint) bool { return base == nil || c.Compare(*base) > 0 })
	if slices.ContainsFunc(kept, func(c Checkpoint) bool { return !j.lists(c.Ref) }) {
		j.Fruitless = 0
	}
	j = j.begin(now)
	j.Checkpoints = kept
	j.Sealed = j.Attempt - 1
	j.Base = base
	if base == nil {
		return j, nil
	}
	return j.emit(events.TypeJobResumed, events.Job{
		Job: j.Name, UID: j.UID, Attempt: j.Attempt, Seq: j.Seq, State: string(j.State), Node: j.node(), Step: &base.Step,
	}), nil
}

func (j Job) lists(r Ref) bool {
	return slices.ContainsFunc(j.Checkpoints, func(c Checkpoint) bool { return c.Ref == r })
}

// insert keeps list ordered and unique.
func insert(list []Checkpoint, c Checkpoint) []Checkpoint {
	at, found := slices.BinarySearchFunc(list, c.Ref, func(have Checkpoint, want Ref) int { return have.Compare(want) })
	if found {
		return list
	}
	return slices.Insert(list, at, c)
}
