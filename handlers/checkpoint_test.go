package handlers_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

func TestParseRef(t *testing.T) {
	for s, want := range map[string]handlers.Ref{
		"1-0": ref(1, 0), "2-1500": ref(2, 1500), "10-9": ref(10, 9), "1-9223372036854775807": ref(1, 1<<63-1),
	} {
		got, err := handlers.ParseRef(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("ParseRef(%q) = %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "-", "1", "1-", "-1", "0-1", "-1-1", "1--1", "01-1", "1-01", "+1-1", "1-+1", "1-1-1", " 1-1",
		"1-1\n", "a-1", "1-9223372036854775808", "99999999999999999999-1", "1_0-1", "0x1-1", "１-1"} {
		_, err := handlers.ParseRef(s)
		wantClass(t, "ParseRef("+s+")", err, handlers.ErrInvalid)
	}
}

func FuzzParseRef(f *testing.F) {
	f.Add("2-1500")
	f.Add("1--5")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := handlers.ParseRef(s)
		switch {
		case err != nil:
			wantClass(t, s, err, handlers.ErrInvalid)
		case r.String() != s || r.Attempt < 1 || r.Step < 0:
			t.Errorf("ParseRef(%q) = %+v, which is written %s", s, r, r)
		}
	})
}

// Rule 13: order is numeric.
func TestRefOrder(t *testing.T) {
	ordered := []handlers.Ref{ref(1, 5), ref(1, 20), ref(1, 100), ref(2, 1), ref(2, 100), ref(2, 1000), ref(10, 0), ref(10, 2)}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := a.Compare(b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%s compared with %s is %d", a, b, got)
			}
		}
	}
}

func refs(list []handlers.Checkpoint) []string {
	out := []string{}
	for _, c := range list {
		out = append(out, c.String())
	}
	return out
}

func TestCommit(t *testing.T) {
	j := record(handlers.Running)
	for _, step := range []int64{200, 1000, 150} { // 150 is finished late: it is inserted
		j = must(j.Commit("me", checkpoint(2, step), t0))
	}
	want(t, "list", refs(j.Checkpoints), []string{"1-100", "2-150", "2-200", "2-1000"})
	_, err := j.Commit("me", checkpoint(2, 200), t0)
	wantClass(t, "a listed one", err, handlers.ErrIgnored)
	_, err = unsealed().Commit("me", checkpoint(2, 200), t0)
	wantClass(t, "before the seal", err, handlers.ErrPermanent)
}

// Rule 12: what an attempt may be restored from, and what its seal makes of the list.
func TestCandidatesAndSeal(t *testing.T) {
	// Attempts 1 to 4; 1 is sealed (by 2), 2 listed 2-20 and 2-30, 3 died before its seal, 4 is at work.
	j := record(handlers.Running)
	j = must(must(j.Commit("me", checkpoint(2, 120), t0)).Commit("me", checkpoint(2, 130), t0))
	j = must(must(j.LoseLease(t0)).StartInPlace(claimOn("three", n3), false, t0))
	j = must(must(j.LoseLease(t0)).StartInPlace(claimOn("four", n1), false, t0))
	found := []handlers.Checkpoint{
		checkpoint(1, 110),  // of a sealed attempt: a zombie's
		checkpoint(2, 125),  // written late
		checkpoint(2, 1000), // whole, never listed
		checkpoint(2, 130),  // listed as well
		checkpoint(4, 1), checkpoint(5, 1),
	}
	want(t, "candidates", refs(j.Candidates(found)), []string{"2-1000", "2-130", "2-125", "2-120", "1-100"})
	for name, c := range map[string]struct {
		base *handlers.Ref
		want []string
	}{
		"the newest":    {ptr(ref(2, 1000)), []string{"1-100", "2-120", "2-125", "2-130", "2-1000"}},
		"one before it": {ptr(ref(2, 130)), []string{"1-100", "2-120", "2-125", "2-130"}},
		"an adopted":    {ptr(ref(2, 125)), []string{"1-100", "2-120", "2-125"}},
		"the oldest":    {ptr(ref(1, 100)), []string{"1-100"}},
		"nothing":       {nil, []string{}},
	} {
		sealed := must(j.Seal("four", c.base, found, t0))
		want(t, name+": list", refs(sealed.Checkpoints), c.want)
		want(t, name+": sealed", sealed.Sealed, 3)
		want(t, name+": base", sealed.Base, c.base)
		if c.base != nil {
			want(t, name+": events", types(sealed.Outbox[len(j.Outbox):]), []string{"job.resumed"})
		}
		want(t, name+": no manifest of an older attempt joins any more", refs(sealed.Candidates(found)), reversed(c.want))
		again := must(sealed.Commit("four", checkpoint(4, 7), t0))
		want(t, name+": the next commit", refs(again.Checkpoints), append(slices.Clone(c.want), "4-7"))
	}
	_, err := j.Seal("three", nil, nil, t0)
	wantClass(t, "seal by a superseded attempt", err, handlers.ErrSuperseded)
}

func reversed(s []string) []string {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

// TestListProperties commits, loses and seals at random and checks what must hold of any list.
func TestListProperties(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		j := must(handlers.NewJob("j", "uid", handlers.RestarterNone, nil, t0).Claim(1, claimOn("x", n3), t0))
		for range 8 {
			for range rnd.IntN(6) {
				if next, err := j.Commit("x", checkpoint(j.Attempt, rnd.Int64N(30)), t0); err == nil {
					j = next
				}
			}
			j = must(j.LoseLease(t0))
			if j.State.Terminal() {
				j = must(j.Retry(t0))
			}
			j = must(j.StartInPlace(claimOn("x", n3), false, t0))
			if rnd.IntN(4) == 0 {
				continue // dies before it seals
			}
			var found []handlers.Checkpoint
			for range rnd.IntN(8) {
				found = append(found, checkpoint(1+rnd.IntN(j.Attempt+1), rnd.Int64N(30)))
			}
			candidates := j.Candidates(found)
			for _, c := range candidates {
				if c.Attempt >= j.Attempt {
					t.Fatalf("seed %d: attempt %d may be restored from %s", seed, j.Attempt, c)
				}
			}
			checkList(t, reversedList(candidates))
			var base *handlers.Ref
			if n := len(candidates); n > 0 && rnd.IntN(5) > 0 {
				base = &candidates[rnd.IntN(n)].Ref
			}
			before := j.Sealed
			j = must(j.Seal("x", base, found, t0))
			checkList(t, j.Checkpoints)
			if j.Sealed <= before {
				t.Fatalf("seed %d: sealed went from %d to %d", seed, before, j.Sealed)
			}
			if n := len(j.Checkpoints); base == nil && n > 0 || base != nil && j.Checkpoints[n-1].Ref != *base {
				t.Fatalf("seed %d: restored from %v, the list is %v", seed, base, refs(j.Checkpoints))
			}
		}
	}
}

func reversedList(list []handlers.Checkpoint) []handlers.Checkpoint {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

func checkList(t *testing.T, list []handlers.Checkpoint) {
	t.Helper()
	for i := 1; i < len(list); i++ {
		if list[i-1].Compare(list[i].Ref) >= 0 {
			t.Fatalf("list is not in order or not unique: %v", refs(list))
		}
	}
}

// Rule 11: who wrote it and when does not matter, everything else does.
func TestIdentical(t *testing.T) {
	base := func() handlers.Manifest {
		return handlers.Manifest{Format: 1, Job: "j", UID: "u", Attempt: 2, Step: 7, Writer: "a", Written: t0,
			Files: []handlers.File{{Path: "m/a", Size: 3, SHA256: "aa"}, {Path: "m/b", Size: 4, SHA256: "bb"}}}
	}
	for name, c := range map[string]struct {
		change func(*handlers.Manifest)
		want   bool
	}{
		"nothing": {func(*handlers.Manifest) {}, true},
		"writer":  {func(m *handlers.Manifest) { m.Writer = "b" }, true},
		"times":   {func(m *handlers.Manifest) { m.Written = t0.Add(time.Hour); m.Files[0].MTime = t0 }, true},
		"mode":    {func(m *handlers.Manifest) { m.Files[0].Mode = 0o600 }, true},
		"job":     {func(m *handlers.Manifest) { m.Job = "k" }, false},
		"uid":     {func(m *handlers.Manifest) { m.UID = "v" }, false},
		"attempt": {func(m *handlers.Manifest) { m.Attempt = 3 }, false},
		"step":    {func(m *handlers.Manifest) { m.Step = 8 }, false},
		"path":    {func(m *handlers.Manifest) { m.Files[0].Path = "m/c" }, false},
		"rank":    {func(m *handlers.Manifest) { m.Files[0].Node = 1 }, false},
		"size":    {func(m *handlers.Manifest) { m.Files[0].Size = 9 }, false},
		"digest":  {func(m *handlers.Manifest) { m.Files[1].SHA256 = "cc" }, false},
		"fewer":   {func(m *handlers.Manifest) { m.Files = m.Files[:1] }, false},
		"more":    {func(m *handlers.Manifest) { m.Files = append(m.Files, handlers.File{Path: "m/c"}) }, false},
	} {
		other := base()
		c.change(&other)
		if got := base().Identical(other); got != c.want || other.Identical(base()) != c.want {
			t.Errorf("%s differs: identical = %t, want %t", name, got, c.want)
		}
	}
	entry := base().Entry("k/", t0)
	want(t, "entry", entry, handlers.Checkpoint{Ref: ref(2, 7), Key: "k/", Bytes: 7, Files: 2, Committed: t0})
}
