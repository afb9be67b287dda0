package local

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/reprieve-dev/reprieve/handlers"
)

// spec is the template of a launch spec of kind local. All strings are templates themselves.
type spec struct {
	command []string
	dir     string            // working directory, relative to the node's; empty is the node's
	env     map[string]string // on top of Config.Env
}

// Validate returns ErrInvalid, naming the field, if l cannot be launched by this package. Whether
// the command exists shows when it is launched.
func Validate(l handlers.Launch) error {
	_, err := render(handlers.Job{Name: "job", Attempt: 1, Launch: &l}, "/")
	return err
}

// command is what to start.
type command struct {
	argv []string
	dir  string
	env  []string // KEY=value
}

// render fills in the template of a job whose node's directory is dir.
func render(job handlers.Job, dir string) (command, error) {
	if job.Launch == nil {
		return command{}, fmt.Errorf("%w: %s has no launch spec: give it one", handlers.ErrInvalid, job.Name)
	}
	s, err := parse(job.Launch.Template)
	if err != nil {
		return command{}, err
	}
	values := map[string]any{"Job": job.Name, "Attempt": job.Attempt, "Name": job.LaunchName(), "Dir": dir, "Step": int64(0)}
	if n := len(job.Checkpoints); n > 0 {
		values["Step"] = job.Checkpoints[n-1].Step
	}
	var c command
	for i, text := range s.command {
		arg, err := fill("template.command["+strconv.Itoa(i)+"]", text, values)
		if err != nil {
			return c, err
		}
		c.argv = append(c.argv, arg)
	}
	if c.argv[0] == "" {
		return c, fmt.Errorf("%w: template.command[0] is empty: name a program", handlers.ErrInvalid)
	}
	for _, key := range slices.Sorted(maps.Keys(s.env)) {
		value, err := fill("template.env."+key, s.env[key], values)
		if err != nil {
			return c, err
		}
		c.env = append(c.env, key+"="+value)
	}
	c.env = append(c.env, "REPRIEVE_JOB="+job.Name, "REPRIEVE_ATTEMPT="+strconv.Itoa(job.Attempt),
		NodeVariable+"="+job.LaunchName(), dirVariable+"="+dir)
	if c.dir, err = fill("template.dir", s.dir, values); err != nil {
		return c, err
	}
	if !filepath.IsAbs(c.dir) {
		c.dir = filepath.Join(dir, c.dir)
	}
	return c, nil
}

func fill(field, text string, values map[string]any) (string, error) {
	t, err := template.New(field).Option("missingkey=error").Parse(text)
	var b strings.Builder
	if err == nil {
		err = t.Execute(&b, values)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s: fill in Job, Attempt, Name, Step and Dir only, as in {{.Job}}: %w", handlers.ErrInvalid, field, err)
	}
	if strings.Contains(b.String(), "\x00") {
		return "", fmt.Errorf("%w: %s has a zero byte: remove it", handlers.ErrInvalid, field)
	}
	return b.String(), nil
}

// parse reads the template strictly.
func parse(fields map[string]any) (spec, error) {
	var s spec
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		var ok bool
		var want string
		switch key {
		case "command":
			s.command, ok = stringList(fields[key])
			want = "a list of strings, the program first (numbers in quotes)"
		case "dir":
			s.dir, ok = fields[key].(string)
			want = "a path"
		case "env":
			s.env, ok = stringMap(fields[key])
			want = "a mapping of names to strings (numbers in quotes)"
		default:
			return s, fmt.Errorf("%w: template.%s is unknown: kind local has command, dir and env", handlers.ErrInvalid, key)
		}
		if !ok {
			return s, fmt.Errorf("%w: template.%s: give %s", handlers.ErrInvalid, key, want)
		}
	}
	if len(s.command) == 0 {
		return s, fmt.Errorf("%w: template.command is missing: give a list of strings, the program first", handlers.ErrInvalid)
	}
	return s, nil
}

func stringList(value any) ([]string, bool) {
	items, ok := value.([]any)
	var list []string
	for _, item := range items {
		text, isString := item.(string)
		list, ok = append(list, text), ok && isString
	}
	return list, ok
}

func stringMap(value any) (map[string]string, bool) {
	items, ok := value.(map[string]any)
	result := map[string]string{}
	for key, item := range items {
		text, isString := item.(string)
		result[key] = text
		ok = ok && isString && key != "" && !strings.ContainsAny(key, "=\x00")
	}
	return result, ok
}
