// Package launch reads launch specs: how to start a job again. Launchers live in one folder per
// kind; this version has local.
package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/reprieve-dev/reprieve/handlers"
)

// kinds of the contract; those in built exist.
var (
	kinds = []string{"kubernetes", "local", "ec2", "gce", "sagemaker", "vertex", "azureml", "slurm"}
	built = []string{"local"}
)

// Parse reads a launch spec. ErrInvalid names the line or the field.
func Parse(data []byte) (handlers.Launch, error) {
	var spec handlers.Launch
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	err := decoder.Decode(&spec)
	if errors.Is(err, io.EOF) {
		return spec, fmt.Errorf("%w: the launch spec is empty: it needs kind and template", handlers.ErrInvalid)
	}
	if err != nil {
		return spec, fmt.Errorf("%w: %w", handlers.ErrInvalid, err)
	}
	if err := decoder.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return spec, fmt.Errorf("%w: more than one document: give one launch spec", handlers.ErrInvalid)
	}
	switch {
	case spec.Kind == "":
		return spec, fmt.Errorf("%w: kind is missing: this version has %v", handlers.ErrInvalid, built)
	case !slices.Contains(kinds, spec.Kind):
		return spec, fmt.Errorf("%w: kind %q is unknown: this version has %v", handlers.ErrInvalid, spec.Kind, built)
	case !slices.Contains(built, spec.Kind):
		return spec, fmt.Errorf("%w: kind %q is not in this version, which has %v", handlers.ErrInvalid, spec.Kind, built)
	case len(spec.Template) == 0:
		return spec, fmt.Errorf("%w: template is missing", handlers.ErrInvalid)
	case spec.Budget.Preemptions != nil && *spec.Budget.Preemptions < 0, spec.Budget.Failures != nil && *spec.Budget.Failures < 0:
		return spec, fmt.Errorf("%w: budget: numbers start at 0; leave preemptions out for unlimited", handlers.ErrInvalid)
	case spec.Backoff.Factor != 0 && spec.Backoff.Factor < 1:
		return spec, fmt.Errorf("%w: backoff.factor %g: give 1 or more", handlers.ErrInvalid, spec.Backoff.Factor)
	}
	return spec, nil
}
