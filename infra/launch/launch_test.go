package launch_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/launch"
)

const minimal = "kind: local\ntemplate: {command: [train]}\n"

func TestParse(t *testing.T) {
	two, none := 2, 0
	template := map[string]any{"command": []any{"train"}}
	for name, c := range map[string]struct {
		text string
		want handlers.Launch
	}{
		"minimal": {minimal, handlers.Launch{Kind: "local", Template: template}},
		"all": {"---\n" + minimal + "budget: {preemptions: 2, failures: 0}\nbackoff: {initial: 1m30s, factor: 1.5, max: 2h}\n",
			handlers.Launch{Kind: "local", Template: template, Budget: handlers.Budget{Preemptions: &two, Failures: &none},
				Backoff: handlers.Backoff{Initial: handlers.Duration(90 * time.Second), Factor: 1.5, Max: handlers.Duration(2 * time.Hour)}}},
		"unlimited": {minimal + "budget: {preemptions: unlimited}\n", handlers.Launch{Kind: "local", Template: template}},
		"JSON":      {`{"kind":"local","template":{"command":["train"]},"backoff":{"initial":"0s"}}`, handlers.Launch{Kind: "local", Template: template}},
		"anchors":   {"kind: &k local\ntemplate: {command: [*k]}\n", handlers.Launch{Kind: "local", Template: map[string]any{"command": []any{"local"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := launch.Parse([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"empty":                {"", []string{"empty", "kind", "template"}},
		"only a comment":       {"# later\n", []string{"empty"}},
		"null":                 {"null\n", []string{"kind"}},
		"a list":               {"- local\n", []string{"line 1"}},
		"not YAML":             {"kind: local\ntemplate: {\n", []string{"line"}},
		"a tab":                {"kind: local\n\ttemplate: x\n", []string{"line 2"}},
		"unknown field":        {minimal + "retries: 3\n", []string{"line 3", "retries"}},
		"unknown inner field":  {minimal + "budget:\n  failure: 3\n", []string{"line 4", "failure"}},
		"field twice":          {minimal + "kind: local\n", []string{"line 3", "kind"}},
		"two documents":        {minimal + "---\n" + minimal, []string{"more than one document"}},
		"no kind":              {"template: {command: [x]}\n", []string{"kind is missing", "local"}},
		"unknown kind":         {"kind: laptop\ntemplate: {a: b}\n", []string{`"laptop" is unknown`, "local"}},
		"kind of later":        {"kind: kubernetes\ntemplate: {a: b}\n", []string{`"kubernetes" is not in this version`, "local"}},
		"no template":          {"kind: local\n", []string{"template is missing"}},
		"empty template":       {"kind: local\ntemplate: {}\n", []string{"template is missing"}},
		"template a text":      {"kind: local\ntemplate: train\n", []string{"line 2"}},
		"negative budget":      {minimal + "budget: {failures: -1}\n", []string{"line 3", "budget.failures"}},
		"budget a word":        {minimal + "budget: {failures: unlimited}\n", []string{"line 3", "budget.failures"}},
		"duration a number":    {minimal + "backoff: {initial: 10}\n", []string{"line 3", "backoff.initial", "10s"}},
		"duration a word":      {minimal + "backoff:\n  max: soon\n", []string{"line 4", "backoff.max", "10m"}},
		"duration negative":    {minimal + "backoff: {max: -5s}\n", []string{"line 3", "backoff.max"}},
		"factor shrinks":       {minimal + "backoff: {factor: 0.5}\n", []string{"line 3", "backoff.factor", "from 1"}},
		"factor negative":      {minimal + "backoff: {factor: -2}\n", []string{"line 3", "backoff.factor", "from 1"}},
		"factor no number":     {minimal + "backoff: {factor: .nan}\n", []string{"backoff.factor"}},
		"factor endless":       {minimal + "backoff: {factor: .inf}\n", []string{"backoff.factor"}},
		"template no number":   {"kind: local\ntemplate: {a: .nan}\n", []string{"template"}},
		"template odd keys":    {"kind: local\ntemplate: {env: {1: x, [2]: y}}\n", []string{"line 2", "template"}},
		"template number keys": {"kind: local\ntemplate: {env: {1: x}}\n", []string{"template"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := launch.Parse([]byte(c.text))
			if !errors.Is(err, handlers.ErrInvalid) {
				t.Fatalf("got %v, want invalid", err)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("got %q, want it to say %q", err, says)
				}
			}
		})
	}
}

// The example that people copy is one that Parse takes.
func TestParseTheDocumentedSpec(t *testing.T) {
	data, err := os.ReadFile("../../docs/launch-local.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := launch.Parse(data); err != nil {
		t.Error(err)
	}
}

// FuzzParse: a spec is invalid or survives in a job record, which is JSON.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", minimal, minimal + "backoff: {initial: 1m, factor: 2, max: 1h}\n", minimal + "budget: {failures: -1}",
		"kind: local\ntemplate: &a {b: *a}\n", "kind: local\ntemplate: {<<: {a: 1}, t: 2026-03-01, b: !!binary aGk=}\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := launch.Parse(data)
		if err != nil {
			if !errors.Is(err, handlers.ErrInvalid) {
				t.Fatalf("got %v, want invalid", err)
			}
			return
		}
		if spec.Kind != "local" || len(spec.Template) == 0 || !(spec.Backoff.Factor == 0 || spec.Backoff.Factor >= 1) || spec.Backoff.Initial < 0 || spec.Backoff.Max < 0 {
			t.Errorf("got %+v", spec)
		}
		raw, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		var again handlers.Launch
		if err := json.Unmarshal(raw, &again); err != nil {
			t.Fatal(err)
		}
		twice, err := json.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		var thrice handlers.Launch
		if err := json.Unmarshal(twice, &thrice); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(again, thrice); diff != "" {
			t.Errorf("(-written once +twice)\n%s", diff)
		}
	})
}
