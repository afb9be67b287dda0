package framework_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/framework"
)

// put writes a file in dir whose name is a slash path; every file is a second younger than the one before.
type tree struct {
	t   *testing.T
	dir string
	at  time.Time
}

func newTree(t *testing.T) *tree {
	return &tree{t, t.TempDir(), time.Now().Add(-time.Hour).Truncate(time.Second)}
}

func (d *tree) put(name, content string) {
	d.t.Helper()
	path := filepath.Join(d.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		d.t.Fatal(err)
	}
	d.at = d.at.Add(time.Second)
	if err := os.Chtimes(path, d.at, d.at); err != nil {
		d.t.Fatal(err)
	}
}

func (d *tree) link(target, name string) {
	d.t.Helper()
	if err := os.Symlink(target, filepath.Join(d.dir, name)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *tree) scan(f framework.Framework, ev framework.Evidence) []framework.Unit {
	d.t.Helper()
	units, err := f.Scan(d.dir, ev)
	if err != nil {
		d.t.Fatal(err)
	}
	return units
}

// summary is one line a unit: name, step, files, and why it is not complete.
func summary(units []framework.Unit) []string {
	var lines []string
	for _, u := range units {
		line := u.Name + " " + time.Duration(u.Step).String() + " " + strings.Join(u.Files, ",")
		line = strings.Replace(line, "ns ", " ", 1)
		if !u.Complete {
			line += " : " + u.Why
		}
		lines = append(lines, line)
	}
	return lines
}

func byName(t *testing.T, name, marker string) framework.Framework {
	t.Helper()
	f, err := framework.ByName(name, framework.Options{Marker: marker})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func renamed(names ...string) framework.Evidence {
	return framework.Evidence{Renamed: func(name string) bool {
		for _, n := range names {
			if n == name {
				return true
			}
		}
		return false
	}}
}

func TestByName(t *testing.T) {
	for _, name := range []string{"auto", "torch", "generic"} {
		if f := byName(t, name, ""); f.Name() != name {
			t.Errorf("got %s, want %s", f.Name(), name)
		}
	}
	for _, tc := range []struct{ name, marker, sentence string }{
		{"deepspeed", "", "not in this version"},
		{"tensorflow", "", "use auto, torch or generic"},
		{"", "", "use auto, torch or generic"},
		{"torch", "DONE", "a marker goes with generic"},
		{"generic", "a/b", "without a directory"},
		{"generic", "..", "without a directory"},
	} {
		_, err := framework.ByName(tc.name, framework.Options{Marker: tc.marker})
		if !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), tc.sentence) {
			t.Errorf("%s, marker %q: got %v, want %q", tc.name, tc.marker, err, tc.sentence)
		}
	}
	for _, name := range []string{"auto", "torch", "generic"} {
		if _, err := byName(t, name, "").Scan(filepath.Join(t.TempDir(), "none"), framework.Evidence{}); !errors.Is(err, handlers.ErrNotFound) {
			t.Errorf("%s: no such directory: got %v, want ErrNotFound", name, err)
		}
	}
}

func TestGeneric(t *testing.T) {
	const notRenamed = " : it was not renamed into place: write under a temporary name and rename, or use --marker"
	d := newTree(t)
	d.put("step-10/weights", "ww")
	d.put("step-10/sub/rng", "r")
	d.put("step-9.bin", "w")
	d.put("best", "w")
	d.put("step-20/model.tmp", "w")
	d.link("step-10", "latest")
	if err := os.Mkdir(filepath.Join(d.dir, "empty-30"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".reprieve/capture/x-1/0", ".hidden-1", "a-1.tmp", "a-1.part", "a-1.partial", "a-1.INCOMPLETE", "a-1~",
		"a-1.tmp.123", "a-1.tmp123", "a-1.tmp-x", "tmp1a2b3c", "tmp-1", "a-1.lock", "a-1_tmp", "a-1-unfinished"} {
		d.put(name, "x")
	}
	f := byName(t, "generic", "")
	for _, tc := range []struct {
		name string
		ev   framework.Evidence
		want []string
	}{
		{"nothing was seen", framework.Evidence{}, []string{
			"best -1 best" + notRenamed, "step-9.bin 9 step-9.bin" + notRenamed,
			"step-10 10 step-10/sub/rng,step-10/weights" + notRenamed, "step-20 20 step-20/model.tmp" + notRenamed}},
		{"renamed", renamed("step-10", "step-20", "best"), []string{
			"best -1 best", "step-9.bin 9 step-9.bin" + notRenamed,
			"step-10 10 step-10/sub/rng,step-10/weights", "step-20 20 step-20/model.tmp"}},
		{"settled", framework.Evidence{Settled: true}, []string{
			"best -1 best", "step-9.bin 9 step-9.bin", "step-10 10 step-10/sub/rng,step-10/weights",
			"step-20 20 step-20/model.tmp : it was not finished: step-20/model.tmp is a temporary file"}},
		{"written to", framework.Evidence{Settled: true, Writers: []string{"step-10/new", "step-9.bin", "other"}}, []string{
			"best -1 best", "step-9.bin 9 step-9.bin : step-9.bin is still being written",
			"step-10 10 step-10/sub/rng,step-10/weights : step-10/new is still being written",
			"step-20 20 step-20/model.tmp : it was not finished: step-20/model.tmp is a temporary file"}},
	} {
		units := d.scan(f, tc.ev)
		if diff := cmp.Diff(tc.want, summary(units)); diff != "" {
			t.Errorf("%s: -want +got\n%s", tc.name, diff)
		}
	}
	for _, u := range d.scan(f, framework.Evidence{}) {
		if u.Name == "step-10" && (u.Bytes != 3 || time.Since(u.ModTime) < 10*time.Minute) {
			t.Errorf("step-10: got %d bytes of %v", u.Bytes, u.ModTime)
		}
	}
}

func TestGenericMarker(t *testing.T) {
	d := newTree(t)
	d.put("step-1/DONE", "") // of the save before: the weights are younger
	d.put("step-1/weights", "w")
	d.put("step-2/weights", "w")
	d.put("step-2/DONE", "")
	d.put("step-3/weights", "w")
	d.put("step-4.bin", "w")
	d.put("step-4.bin.DONE", "1")
	d.put("step-5.bin", "w")
	d.put("DONE", "")
	for _, name := range []string{"generic", "auto"} {
		got := summary(d.scan(byName(t, name, "DONE"), renamed("step-3", "step-5.bin")))
		want := []string{
			"step-1 1 step-1/DONE,step-1/weights : its marker step-1/DONE is older than its data: the save before wrote it",
			"step-2 2 step-2/DONE,step-2/weights",
			"step-3 3 step-3/weights : its marker step-3/DONE is missing",
			"step-4.bin 4 step-4.bin,step-4.bin.DONE",
			"step-5.bin 5 step-5.bin : its marker step-5.bin.DONE is missing",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
	d.put("step-6.bin", "w")
	d.put("step-6.bin.ok", "")
	got := summary(d.scan(byName(t, "generic", ".ok"), framework.Evidence{}))
	if want := "step-6.bin 6 step-6.bin,step-6.bin.ok"; got[len(got)-1] != want {
		t.Errorf("marker with a dot: got %q, want %q", got[len(got)-1], want)
	}
}

func TestLinksInAUnit(t *testing.T) {
	d := newTree(t)
	outside := newTree(t)
	outside.put("secret", "s")
	d.put("base-1/shard", "s")
	d.put("good-2/own", "o")
	d.put("bad-3/own", "o")
	d.put("dangling-4/own", "o")
	d.link("../base-1/shard", "good-2/shard")
	d.link(filepath.Join(outside.dir, "secret"), "bad-3/shard")
	d.link("none", "dangling-4/shard")
	got := summary(d.scan(byName(t, "generic", ""), renamed("base-1", "good-2", "bad-3", "dangling-4")))
	want := []string{"base-1 1 base-1/shard", "good-2 2 good-2/own,good-2/shard",
		"bad-3 3 bad-3/own : its link bad-3/shard leads to no file in the checkpoint directory",
		"dangling-4 4 dangling-4/own : its link dangling-4/shard leads to no file in the checkpoint directory"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestStepOfAName(t *testing.T) {
	for name, want := range map[string]int64{
		"step-00001234.ckpt": 1234, "epoch=3-step=500.ckpt": 500, "model_10": 10, "100": 100, "last": -1, "a.1": -1,
		"v2-5000.pth.d": 5000, "x-99999999999999999999": -1,
	} {
		d := newTree(t)
		d.put(name, "x")
		if got := d.scan(byName(t, "generic", ""), framework.Evidence{})[0].Step; got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
}

func TestAuto(t *testing.T) {
	d := newTree(t)
	f := byName(t, "auto", "")
	d.put("latest.json", "{}")
	if got, want := summary(d.scan(f, framework.Evidence{Settled: true})), []string{"latest.json -1 latest.json"}; !cmp.Equal(got, want) {
		t.Errorf("only a file: got %q, want %q", got, want)
	}
	if f.Name() != "generic" {
		t.Errorf("chose %s, want generic", f.Name())
	}
	d.put("step-20.pt", archive(t, "data.pkl", ""))
	d.put("step-30.pt", archive(t, "data.pkl", "")[:40])
	d.put("step-40/model", "m")
	d.put("weights.bin", "not a zip")
	d.put("step-10.bin", archive(t, "data.pkl", ""))
	got := summary(d.scan(f, renamed("latest.json", "weights.bin")))
	want := []string{"step-10.bin 10 step-10.bin", "step-20.pt 20 step-20.pt",
		"step-30.pt 30 step-30.pt : it is no complete zip archive: its end is missing",
		"step-40 40 step-40/model : it was not renamed into place: write under a temporary name and rename, or use --marker"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if f.Name() != "generic" {
		t.Errorf("chose %s, want generic: the newest is a directory", f.Name())
	}
	if err := os.RemoveAll(filepath.Join(d.dir, "step-40")); err != nil {
		t.Fatal(err)
	}
	d.scan(f, framework.Evidence{})
	if f.Name() != "torch" {
		t.Errorf("chose %s, want torch", f.Name())
	}
}
