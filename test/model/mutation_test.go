package model_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// edit replaces the one occurrence of a piece of source by another.
type edit struct{ file, old, new string }

// mutations take away, one at a time, what the protocol rests on. Each has to be noticed in its
// scenario.
var mutations = []struct {
	name, scenario string
	edits          []edit
}{
	{"claim in the record", "submitted", []edit{{"handlers/job.go",
		`return claim != "" && slices.ContainsFunc(j.Claims, func(c Claim) bool { return c.ID == claim })`,
		`return claim != "" && len(j.Claims) > 0`}}},
	{"live object put before the record", "birth", []edit{{"infra/catalog/catalog.go",
		`			if err := c.putMark(ctx, liveKey(next.Name, next.Attempt, rank)); err != nil {
				return err
			}
`, `			defer func() { _ = c.putMark(ctx, liveKey(next.Name, next.Attempt, rank)) }()
`}}},
	{"live object deleted only when its attempt is over", "watch before the record", []edit{{"handlers/watch.go",
		`case beat.Attempt < job.Attempt, beat.Attempt == job.Attempt && job.State.Terminal():`,
		`case beat.Attempt != job.Attempt, job.State.Terminal():`}}},
	{"unclaimed reservations passed over", "submitted", []edit{{"handlers/watch.go",
		`case job.State.Reserved() && beat.Age > h.Launch:`,
		`case false && beat.Age > h.Launch:`}}},
	{"terminal is final", "in place", []edit{{"handlers/transitions.go",
		`	case j.State.Terminal():
		return j, fmt.Errorf("%w: %s %s; ` + "`reprieve jobs retry %s`" + ` starts it again", ErrEnded, j.Name, j.State, j.Name)
`, ``}}},
	{"stopping on interrupted", "takeover", []edit{{"handlers/job.go",
		`return j.State.Live() && j.Claimed(claim) }`,
		`return (j.State.Live() || j.State == Interrupted) && j.Claimed(claim) }`}}},
	{"notices apply to the attempt's machine", "late notice", []edit{{"handlers/notice.go",
		`	case !j.RunsOn(n.Node()):
`, `	case len(j.Claims) == 0:
`}}},
	{"in-place starts wait for a reservation", "submitted", []edit{{"handlers/transitions.go",
		`	case j.State.Reserved():
		return j, fmt.Errorf("%w: attempt %d of %s", ErrReserved, j.Attempt, j.Name)
`, ``}}},
	{"the seal", "branches", []edit{
		{"handlers/checkpoint.go", `if c.Attempt > j.Sealed && c.Attempt < j.Attempt {`, `if c.Attempt < j.Attempt {`},
		{"infra/catalog/checkpoints.go", `for attempt := job.Sealed + 1; attempt`, `for attempt := 1; attempt`},
	}},
	{"all manifests of the previous attempt adopted", "adoption", []edit{{"handlers/checkpoint.go",
		`return base == nil || c.Compare(*base) > 0 })`,
		`return base == nil || c.Compare(*base) > 0 || c.Ref != *base && !j.lists(c.Ref) })`}}},
	{"list cut behind the base", "branches", []edit{{"handlers/checkpoint.go",
		`return base == nil || c.Compare(*base) > 0 })`, `return false })`}}},
	{"outbox written with the transition", "birth", []edit{{"infra/catalog/catalog.go",
		`	return writeDoc(ctx, c.Store, jobKey(next.Name), next, cond)
`, `	next.Outbox = nil
	return writeDoc(ctx, c.Store, jobKey(next.Name), next, cond)
`}}},
	{"outbox marked before the transition", "birth", []edit{{"infra/catalog/catalog.go",
		`		if err := c.putMark(ctx, outboxKey(next.Name, next.Seq)); err != nil {
			return err
		}
`, `		defer func() { _ = c.putMark(ctx, outboxKey(next.Name, next.Seq)) }()
`}}},
	{"a conflict is decided again", "two resume handlers", []edit{{"infra/catalog/catalog.go",
		`	var last error
	for range maxTries {
		j, version, err := c.read(ctx, job)
		if err != nil {
			return j, err
		}
		next, err := decide(j)
		if err != nil {
			return j, err
		}
`, `	var last error
	var next handlers.Job
	for range maxTries {
		j, version, err := c.read(ctx, job)
		if err != nil {
			return j, err
		}
		if last == nil {
			if next, err = decide(j); err != nil {
				return j, err
			}
		}
`}}},
}

// TestMutations takes away each of the mutations' subjects in a copy of the source, and sees the
// model fail: with a violation, not by failing to build.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the model once for each mutation")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			overlay := writeOverlay(t, root, m.edits)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-overlay", overlay, "-run", "^TestModel$/^"+strings.ReplaceAll(m.scenario, " ", "_")+"$", ".")
			out, err := cmd.CombinedOutput()
			_, found, is := strings.Cut(string(out), "VIOLATION: ")
			if err == nil || !is {
				t.Fatalf("the model did not notice (%v):\n%s", err, out)
			}
			what, _, _ := strings.Cut(found, "\n")
			t.Log(what)
		})
	}
}

// writeOverlay writes the edited files and the list of them that the go command takes.
func writeOverlay(t *testing.T, root string, edits []edit) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for _, e := range edits {
		path := filepath.Join(root, filepath.FromSlash(e.file))
		from := path
		if edited, again := replace[path]; again {
			from = edited
		}
		source, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), e.old); n != 1 {
			t.Fatalf("%s has this %d times instead of once; update the table of mutations:\n%s", e.file, n, e.old)
		}
		replace[path] = filepath.Join(dir, strings.ReplaceAll(e.file, "/", "-"))
		if err := os.WriteFile(replace[path], []byte(strings.Replace(string(source), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}
