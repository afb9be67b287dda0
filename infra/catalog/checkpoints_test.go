package catalog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

const prefix = "jobs/j/checkpoints/"

// next starts an attempt in place of one that is dead.
func next(t *testing.T, c *catalog.Catalog, id string) *catalog.Attempt {
	t.Helper()
	s := start(id)
	s.Dead = func(handlers.Claim) bool { return true }
	return begin(t, c, s)
}

func read(t *testing.T, s blob.Store, key string) string {
	t.Helper()
	data, _, err := blob.ReadAll(t.Context(), s, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Rules 10, 11, 13 and 16.
func TestCommit(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		ctx := t.Context()
		a := begin(t, c, start("a"))
		base := handlers.Ref{Attempt: 1, Step: 3}
		entry, err := a.Commit(ctx, handlers.Manifest{Step: 500, Framework: "generic", Unit: "model.pt", Base: &base}, upload(c.Store, "weights"))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "entry", []any{entry.String(), entry.Key, entry.Bytes, entry.Files, *entry.Base},
			[]any{"1-500", prefix + "1-500/", int64(7), 1, base})
		info, err := c.Store.Stat(ctx, prefix+"1-500/manifest.json")
		if err != nil || !info.ModTime.Equal(entry.Committed) {
			t.Errorf("committed at %v, the storage says %v (%v)", entry.Committed, info.ModTime, err)
		}
		m, err := c.Manifest(ctx, "j", entry.Ref)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "manifest", []any{m.Format, m.Job, m.UID, m.Framework, m.Unit, m.Writer, m.Ref()},
			[]any{1, "j", "uid-a", "generic", "model.pt", "a", entry.Ref})
		want(t, "data, plain", read(t, c.Store, prefix+"1-500/data/0/model.pt"), "weights")
		if err := verify(ctx, c, entry); err != nil {
			t.Error(err)
		}
		var state struct{ State, Writer string }
		if err := json.Unmarshal([]byte(read(t, c.Store, prefix+"1-500/state.json")), &state); err != nil || state.State != "live" || state.Writer != "a" {
			t.Errorf("state.json says %+v, error %v", state, err)
		}

		commit(t, c, a, 1000)
		commit(t, c, a, 200) // finished late
		want(t, "list", refs(get(t, c).Checkpoints), []string{"1-200", "1-500", "1-1000"})

		seq := get(t, c).Seq
		again, err := a.Commit(ctx, handlers.Manifest{Step: 500, Unit: "model.pt"}, func(context.Context, string) ([]handlers.File, error) {
			t.Error("a step that counts was uploaded again")
			return nil, nil
		})
		if err != nil || again.Ref != entry.Ref {
			t.Errorf("the same again: %v, error %v", again, err)
		}
		want(t, "transitions for it", get(t, c).Seq-seq, 0)
	})
}

func TestCommitThatFails(t *testing.T) {
	ctx := t.Context()
	w := newWorld()
	a := begin(t, w.Catalog, start("a"))
	changed := errors.New("changed while it was read")
	_, err := a.Commit(ctx, handlers.Manifest{Step: 1}, func(ctx context.Context, prefix string) ([]handlers.File, error) {
		if _, err := upload(w.Store, "half")(ctx, prefix); err != nil {
			t.Fatal(err)
		}
		return nil, changed
	})
	wantClass(t, "error of the data", err, changed)
	_, err = w.Manifest(ctx, "j", handlers.Ref{Attempt: 1, Step: 1})
	wantClass(t, "its manifest", err, handlers.ErrNotFound)
	want(t, "list", refs(get(t, w.Catalog).Checkpoints), []string{})
	entry, err := a.Commit(ctx, handlers.Manifest{Step: 1}, upload(w.Store, "whole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(ctx, w.Catalog, entry); err != nil {
		t.Error(err)
	}
}

// Whatever is there already under the keys of a checkpoint is not taken for one's own.
func TestCommitMeetsOthers(t *testing.T) {
	for name, c := range map[string]struct{ key, content string }{
		"state of another writer": {"state.json", `{"format":1,"state":"live","writer":"x"}`},
		"tombstoned":              {"state.json", `{"format":1,"state":"tombstoned","writer":"a"}`},
		"another manifest":        {"manifest.json", `{"format":1,"job":"j","uid":"uid-a","attempt":1,"step":1,"files":[]}`},
		"state that is no JSON":   {"state.json", "\x00"},
		"answer that is no JSON":  {"node-0.json", "\x00"},
	} {
		w := newWorld()
		a := begin(t, w.Catalog, start("a"))
		put(t, w.Store, prefix+"1-1/"+c.key, c.content)
		_, err := a.Commit(t.Context(), handlers.Manifest{Step: 1}, upload(w.Store, "x"))
		wantClass(t, name, err, handlers.ErrPermanent)
		want(t, name+": list", refs(get(t, w.Catalog).Checkpoints), []string{})
	}
}

// Rule 12 and 13, on the store.
func TestCandidates(t *testing.T) {
	onStores(t, func(t *testing.T, c *catalog.Catalog) {
		ctx := t.Context()
		a := begin(t, c, start("a"))
		commit(t, c, a, 100)
		b := next(t, c, "b")
		candidates, found, err := b.Candidates(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Seal(ctx, &candidates[0].Ref, found); err != nil {
			t.Fatal(err)
		}
		for _, step := range []int64{100, 1000, 200} {
			commit(t, c, b, step)
		}
		next(t, c, "c") // dies before its seal
		// A zombie of the sealed attempt, and one of the unsealed: b writes a manifest, and the record refuses it.
		_, err = a.Commit(ctx, handlers.Manifest{Step: 5000}, upload(c.Store, "zombie"))
		wantClass(t, "commit by a", err, handlers.ErrSuperseded)
		_, err = b.Commit(ctx, handlers.Manifest{Step: 2000}, upload(c.Store, "late"))
		wantClass(t, "commit by b", err, handlers.ErrSuperseded)
		// What is not whole: no answers, a garbled manifest, one of another job, a name that is none.
		put(t, c.Store, prefix+"2-3000/data/0/model.pt", "half")
		put(t, c.Store, prefix+"2-3001/manifest.json", "{")
		put(t, c.Store, prefix+"2-3002/manifest.json", `{"format":1,"job":"j","uid":"other","attempt":2,"step":3002}`)
		put(t, c.Store, prefix+"2-3003/node-0.json", "{")
		put(t, c.Store, prefix+"2-x/manifest.json", "{}")
		put(t, c.Store, prefix+"2-04000/manifest.json", "{}")

		d := next(t, c, "d")
		candidates, found, err = d.Candidates(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "candidates", refs(candidates), []string{"2-2000", "2-1000", "2-200", "2-100", "1-100"})
		j, err := d.Seal(ctx, &handlers.Ref{Attempt: 2, Step: 2000}, found)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "list after the seal", refs(j.Checkpoints), []string{"1-100", "2-100", "2-200", "2-1000", "2-2000"})
		again, err := d.Seal(ctx, nil, nil)
		want(t, "a second seal changes nothing", []any{again.Seq, refs(again.Checkpoints), err}, []any{j.Seq, refs(j.Checkpoints), error(nil)})
		for _, cp := range j.Checkpoints {
			if err := verify(ctx, c, cp); err != nil {
				t.Error(err)
			}
		}
		if _, found, err = d.Candidates(ctx); err != nil || len(found) > 0 {
			t.Errorf("after the seal found %v, error %v", refs(found), err)
		}
	})
}

// Rule 11: a successor completes what is whole but for its manifest.
func TestCandidatesCompletes(t *testing.T) {
	w := newWorld()
	a := begin(t, w.Catalog, start("a"))
	entry := commit(t, w.Catalog, a, 100)
	manifest := read(t, w.Store, entry.Key+"manifest.json")
	if err := w.Store.Delete(t.Context(), entry.Key+"manifest.json"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Update(t.Context(), "j", func(j handlers.Job) (handlers.Job, error) {
		j.Checkpoints = nil // as if it had died before the manifest
		return j, nil
	}); err != nil {
		t.Fatal(err)
	}
	b := next(t, w.Catalog, "b")
	for range 2 {
		candidates, _, err := b.Candidates(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "candidates", refs(candidates), []string{"1-100"})
	}
	want(t, "manifest", read(t, w.Store, entry.Key+"manifest.json"), manifest)

	put(t, w.Store, prefix+"1-200/node-0.json", strings.ReplaceAll(strings.ReplaceAll(manifest, "uid-a", "other"), `"step": 100`, `"step": 200`))
	candidates, _, err := b.Candidates(t.Context())
	want(t, "candidates beside another job's answer", []any{refs(candidates), err}, []any{[]string{"1-100"}, error(nil)})
	_, err = w.Store.Stat(t.Context(), prefix+"1-200/manifest.json")
	wantClass(t, "a manifest of another job's answer", err, handlers.ErrNotFound)
}

// Thousands of data files cost nothing: the listing jumps over them.
func TestCandidatesJumps(t *testing.T) {
	w := newWorld()
	a := begin(t, w.Catalog, start("a"))
	commit(t, w.Catalog, a, 100)
	commit(t, w.Catalog, a, 200)
	for _, dir := range []string{"1-100", "1-150", "10-1"} {
		for i := range 3000 {
			put(t, w.Store, fmt.Sprintf("%s%s/data/0/shard-%04d", prefix, dir, i), "x")
		}
	}
	b := next(t, w.Catalog, "b")
	w.spy.ops = nil
	candidates, found, err := b.Candidates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "candidates", refs(candidates), []string{"1-200", "1-100"})
	want(t, "found", refs(found), []string{"1-100", "1-200"})
	want(t, "listings", w.spy.lists(), 4)
	if len(w.spy.ops) > 12 {
		t.Errorf("%d operations: %v", len(w.spy.ops), w.spy.ops)
	}
}

func TestCandidatesErrors(t *testing.T) {
	w := newWorld()
	a := begin(t, w.Catalog, start("a"))
	commit(t, w.Catalog, a, 100)
	b := next(t, w.Catalog, "b")
	total := len(w.spy.ops)
	if _, _, err := b.Candidates(t.Context()); err != nil {
		t.Fatal(err)
	}
	for k := range len(w.spy.ops) - total { // an unknown answer is never "not there"
		w.spy.ops = nil
		w.spy.before = func(n int, op string) error {
			if n == k {
				return errAway
			}
			return nil
		}
		_, _, err := b.Candidates(t.Context())
		wantClass(t, fmt.Sprint("operation ", k), err, handlers.ErrUnavailable)
	}
	w.spy.before = nil
	put(t, w.Store, prefix+"1-100/manifest.json", `{"format":2}`)
	_, _, err := b.Candidates(t.Context())
	wantClass(t, "a manifest of a newer version", err, handlers.ErrPermanent)
}

func TestManifest(t *testing.T) {
	w := newWorld()
	ref := handlers.Ref{Attempt: 1, Step: 5}
	_, err := w.Manifest(t.Context(), "j", ref)
	wantClass(t, "none", err, handlers.ErrNotFound)
	for content, class := range map[string]error{
		"": handlers.ErrRotten, "{": handlers.ErrRotten, "{}": handlers.ErrRotten, "null": handlers.ErrRotten,
		`{"format":2}`: handlers.ErrPermanent,
	} {
		put(t, w.Store, prefix+"1-5/manifest.json", content)
		_, err := w.Manifest(t.Context(), "j", ref)
		wantClass(t, content, err, class)
	}
	w.spy.before = func(int, string) error { return errAway }
	_, err = w.Manifest(t.Context(), "j", ref)
	wantClass(t, "store away", err, handlers.ErrUnavailable)
}
