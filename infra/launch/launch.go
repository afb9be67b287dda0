// Package launch reads launch specs: how to start a job again. Launchers live in one folder per
// kind, each with a Validate for its template; this version has local. Nothing is launched here.
package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/launch/local"
)

// kinds of the contract. validators has those of this version.
var (
	kinds      = []string{"kubernetes", "local", "ec2", "gce", "sagemaker", "vertex", "azureml", "slurm"}
	validators = map[string]func(handlers.Launch) error{"local": local.Validate}
)

// document is a launch spec as it is written; what is a node is decoded field by field, to name it.
type document struct {
	Kind     yaml.Node `yaml:"kind"`
	Template yaml.Node `yaml:"template"`
	Budget   struct {
		Preemptions yaml.Node `yaml:"preemptions"`
		Failures    yaml.Node `yaml:"failures"`
	} `yaml:"budget"`
	Backoff struct {
		Initial yaml.Node `yaml:"initial"`
		Factor  yaml.Node `yaml:"factor"`
		Max     yaml.Node `yaml:"max"`
	} `yaml:"backoff"`
}

// Parse reads a launch spec in YAML and validates its template. All errors are ErrInvalid and name
// the field and, where it is written, the line.
func Parse(data []byte) (handlers.Launch, error) {
	var spec handlers.Launch
	var doc document
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	err := decoder.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return spec, fmt.Errorf("%w: the launch spec is empty: it needs kind and template", handlers.ErrInvalid)
	}
	if err != nil {
		return spec, fmt.Errorf("%w: the launch spec: %s", handlers.ErrInvalid, readable(err))
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return spec, fmt.Errorf("%w: more than one document: give one launch spec", handlers.ErrInvalid)
	}
	if doc.Budget.Preemptions.Value == "unlimited" {
		doc.Budget.Preemptions = yaml.Node{}
	}
	for _, f := range []struct {
		name, want string
		from       yaml.Node
		into       any
		ok         func() bool
	}{
		{"kind", "a name", doc.Kind, &spec.Kind, func() bool { return true }},
		{"template", "a mapping", doc.Template, &spec.Template, func() bool { return true }},
		{"budget.preemptions", "unlimited, or a number from 0", doc.Budget.Preemptions, &spec.Budget.Preemptions, func() bool { return fromZero(spec.Budget.Preemptions) }},
		{"budget.failures", "a number from 0", doc.Budget.Failures, &spec.Budget.Failures, func() bool { return fromZero(spec.Budget.Failures) }},
		{"backoff.initial", "a duration such as 10s", doc.Backoff.Initial, &spec.Backoff.Initial, func() bool { return true }},
		{"backoff.factor", "a number from 1", doc.Backoff.Factor, &spec.Backoff.Factor, func() bool { return spec.Backoff.Factor >= 1 && !math.IsInf(spec.Backoff.Factor, 1) }},
		{"backoff.max", "a duration such as 10m", doc.Backoff.Max, &spec.Backoff.Max, func() bool { return true }},
	} {
		if f.from.IsZero() {
			continue
		}
		if f.from.Decode(f.into) != nil || !f.ok() {
			return spec, fmt.Errorf("%w: line %d: %s: give %s", handlers.ErrInvalid, f.from.Line, f.name, f.want)
		}
	}
	built := strings.Join(slices.Sorted(maps.Keys(validators)), ", ")
	validate := validators[spec.Kind]
	switch {
	case spec.Kind == "":
		return spec, fmt.Errorf("%w: kind is missing: this version has %s", handlers.ErrInvalid, built)
	case !slices.Contains(kinds, spec.Kind):
		return spec, fmt.Errorf("%w: line %d: kind %q is unknown: this version has %s", handlers.ErrInvalid, doc.Kind.Line, spec.Kind, built)
	case validate == nil:
		return spec, fmt.Errorf("%w: line %d: kind %q is not in this version, which has %s", handlers.ErrInvalid, doc.Kind.Line, spec.Kind, built)
	case len(spec.Template) == 0:
		return spec, fmt.Errorf("%w: template is missing: it says what to start", handlers.ErrInvalid)
	}
	return spec, validate(spec)
}

func fromZero(n *int) bool { return n == nil || *n >= 0 }

var (
	unknownField = regexp.MustCompile(`field (\S+) not found in type \S+`)
	wrongShape   = regexp.MustCompile("cannot unmarshal .* into (struct|launch).*")
)

// readable makes one sentence, in the words of the file, of what the YAML decoder says.
func readable(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var several *yaml.TypeError
	if errors.As(err, &several) && len(several.Errors) > 0 {
		text = several.Errors[0]
	}
	text = unknownField.ReplaceAllString(text, "this version does not know the field $1")
	return wrongShape.ReplaceAllString(text, "give a mapping, with a field on each line")
}
