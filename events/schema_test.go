package events_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	invopop "github.com/invopop/jsonschema"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/reprieve-dev/reprieve/events"
)

var update = flag.Bool("update", false, "write events/schema anew from the Go types")

const dir = "schema"

// generate returns the JSON Schema of the data of one event type. New fields may come, so readers
// have to let fields pass that they do not know.
func generate(t *testing.T, typ string) []byte {
	t.Helper()
	r := invopop.Reflector{DoNotReference: true, AllowAdditionalProperties: true}
	if err := r.AddGoComments("github.com/reprieve-dev/reprieve/events", "."); err != nil {
		t.Fatal(err)
	}
	s := r.Reflect(events.Types[typ])
	s.ID = invopop.ID("https://github.com/reprieve-dev/reprieve/events/schema/" + typ + ".json")
	s.Title = typ
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

// The files and the Go types say the same, and there is a file for every type and none besides.
func TestSchemasMatchTypes(t *testing.T) {
	var want []string
	for typ := range events.Types {
		path := filepath.Join(dir, typ+".json")
		want = append(want, path)
		generated := generate(t, typ)
		if *update {
			if err := os.WriteFile(path, generated, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		written, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%s has no schema: run go test ./events -update (%v)", typ, err)
			continue
		}
		if !bytes.Equal(generated, written) {
			t.Errorf("%s is not what the Go type says: run go test ./events -update", path)
		}
	}
	got, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("files: got %q, want %q", got, want)
	}
}

func compile(t *testing.T, typ string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join(dir, typ+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, data []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

func ptr[T any](v T) *T { return &v }

// samples are data with every field set, and with as few as possible.
func samples() map[string][]any {
	node := &events.Node{Provider: "aws", Instance: "i-1"}
	jobs := []any{
		events.Job{Job: "j", UID: "u", Attempt: 1, Seq: 1, State: "running"},
		events.Job{Job: "j", UID: "u", Attempt: 2, Seq: 9, State: "preempting", Node: node, Cause: "preempt", Detail: "d", Step: ptr(int64(0))},
	}
	checkpoints := []any{
		events.Checkpoint{Job: "j", UID: "u", Attempt: 1, Seq: 2},
		events.Checkpoint{Job: "j", UID: "u", Attempt: 1, Seq: 2, Node: node, Step: ptr(int64(1 << 60)), Key: "k", Bytes: 1, Kind: events.KindPreempt, Deadline: &noon, Reason: "r"},
	}
	notices := []any{events.Notice{Provider: "aws", Instance: "i-1", Kind: events.KindGone}}
	for _, kind := range events.Kinds {
		notices = append(notices, events.Notice{Provider: "aws", Instance: "i-1", Kind: kind, Deadline: &noon, Zone: "z", NativeID: "n", Cancelled: true})
	}
	artifacts := []any{events.Artifact{Job: "j", Artifact: "1-2", Bytes: 3, Reason: "r"}}
	due := []any{events.Due{At: noon}}
	out := map[string][]any{}
	for typ, zero := range events.Types {
		switch zero.(type) {
		case events.Notice:
			out[typ] = notices
		case events.Job:
			out[typ] = jobs
		case events.Checkpoint:
			out[typ] = checkpoints
		case events.Artifact:
			out[typ] = artifacts
		case events.Due:
			out[typ] = due
		case events.Progress:
			out[typ] = []any{
				events.Progress{Job: "j", Attempt: 1, Step: 5},
				events.Progress{Job: "j", Attempt: 1, Step: 5, Epoch: ptr(0.5), Samples: ptr(int64(7)), Loss: ptr(1e-9)},
			}
		case events.Report:
			out[typ] = []any{events.Report{Key: "k", Since: noon, Until: noon.Add(time.Hour)}}
		case events.Alert:
			out[typ] = []any{events.Alert{Code: "no-progress", Detail: "d"}, events.Alert{Job: "j", Code: "no-progress", Detail: "d"}}
		}
	}
	return out
}

// What is written passes the schema; without any one required field, or with a field of another
// shape, it does not.
func TestEventsPassTheirSchema(t *testing.T) {
	all := samples()
	for _, typ := range slices.Sorted(maps.Keys(events.Types)) {
		t.Run(typ, func(t *testing.T) {
			schema := compile(t, typ)
			if len(all[typ]) == 0 {
				t.Fatal("there is no sample of it")
			}
			for _, data := range all[typ] {
				e, err := events.New(typ, events.Source, "s", "id", noon, data)
				if err != nil {
					t.Fatal(err)
				}
				if err := validate(t, schema, e.Data()); err != nil {
					t.Errorf("%s: %v", e.Data(), err)
				}
			}
			least, err := json.Marshal(all[typ][0])
			if err != nil {
				t.Fatal(err)
			}
			var fields map[string]any
			if err := json.Unmarshal(least, &fields); err != nil {
				t.Fatal(err)
			}
			for name, value := range fields {
				for what, change := range map[string]func(){
					"without it": func() { delete(fields, name) },
					"a list":     func() { fields[name] = []any{} },
				} {
					change()
					changed, err := json.Marshal(fields)
					if err != nil {
						t.Fatal(err)
					}
					if validate(t, schema, changed) == nil {
						t.Errorf("%s, %s: passes, but must not: %s", name, what, changed)
					}
					fields[name] = value
				}
			}
		})
	}
	notice := compile(t, events.TypeNodeNotice)
	for _, bad := range []string{
		`{"provider":"aws","instance":"i-1","kind":"melt"}`,
		`{"provider":"aws","instance":"i-1","kind":"stop","deadline":"noon"}`,
	} {
		if validate(t, notice, []byte(bad)) == nil {
			t.Errorf("passes, but must not: %s", bad)
		}
	}
	if err := validate(t, notice, []byte(`{"provider":"aws","instance":"i-1","kind":"stop","of":"a later version"}`)); err != nil {
		t.Errorf("a field of a later version: %v", err)
	}
}

// Every constant Type... is in Types, and is of ours.
func TestTypesAreComplete(t *testing.T) {
	source, err := os.ReadFile("types.go")
	if err != nil {
		t.Fatal(err)
	}
	for typ := range events.Types {
		if !strings.HasPrefix(typ, "dev.reprieve.") {
			t.Errorf("%s is not below dev.reprieve.", typ)
		}
	}
	if got, want := len(events.Types), strings.Count(string(source), `= "dev.reprieve.`); got != want {
		t.Errorf("Types has %d entries, but there are %d constants", got, want)
	}
	for _, kind := range events.Kinds {
		if kind.Effect() == events.EffectNone {
			t.Errorf("kind %s has no effect", kind)
		}
		if !strings.Contains(string(source), "enum="+string(kind)) {
			t.Errorf("kind %s is missing in the enum of Notice.Kind", kind)
		}
	}
	if got := events.Kind("melt").Effect(); got != events.EffectNone {
		t.Errorf("effect of an unknown kind: got %d, want EffectNone", got)
	}
}
