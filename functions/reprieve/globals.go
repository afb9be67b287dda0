package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/reprieve-dev/reprieve/functions/internal/app"
	"github.com/reprieve-dev/reprieve/handlers"
)

// globals are the flags that every command has, and what becomes of them.
type globals struct {
	app.Settings
	config, output, logLevel, logFormat string
}

func (g *globals) flags(f *pflag.FlagSet) {
	f.StringVar(&g.Store, "store", "", "where jobs and checkpoints are kept: file:///dir, s3://bucket/prefix?endpoint=...&region=...&path_style=true")
	f.StringVar(&g.Bus, "bus", app.NoBus, "where events go: nats://host:4222, nats+embedded:// or none")
	f.StringVar(&g.config, "config", "", "YAML file with flags as keys; flags and REPRIEVE_* variables win over it")
	f.StringVar(&g.StateDir, "state-dir", app.DefaultStateDir(), "local state: sockets, nodes of the local launcher, the embedded bus")
	f.DurationVar(&g.Lease, "lease", app.DefaultLease, "an attempt without a heartbeat for so long is over; the same everywhere in a store")
	f.StringVarP(&g.output, "output", "o", "text", "text or json")
	f.StringVar(&g.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&g.logFormat, "log-format", "", "text or json (default: text on a terminal, json elsewhere)")
}

// load fills flags that were not given from the environment, then from the configuration file, and
// validates what all commands share.
func (g *globals) load(cmd *cobra.Command) error {
	if err := setUnset(cmd, func(name string) (string, bool) { return os.LookupEnv(variable(name)) }, variable); err != nil {
		return err
	}
	if g.config != "" {
		values, err := readConfig(g.config, cmd)
		if err != nil {
			return err
		}
		err = setUnset(cmd, func(name string) (string, bool) { v, ok := values[name]; return v, ok },
			func(name string) string { return g.config + ": " + name })
		if err != nil {
			return err
		}
	}
	if g.output != "text" && g.output != "json" {
		return fmt.Errorf("%w: --output %q: use text or json", handlers.ErrInvalid, g.output)
	}
	if g.Lease < time.Second {
		return fmt.Errorf("%w: --lease %s: give at least 1s", handlers.ErrInvalid, g.Lease)
	}
	var err error
	g.Log, err = newLogger(g.logLevel, g.logFormat)
	return err
}

func variable(flag string) string {
	return "REPRIEVE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// notFromOutside are flags that only a command line can give.
var notFromOutside = []string{"help", "config", "output", "log-level", "log-format"}

func setUnset(cmd *cobra.Command, lookup func(name string) (string, bool), origin func(name string) string) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value, ok := lookup(f.Name)
		if !ok || f.Changed || failed != nil || f.Name == "help" {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			failed = fmt.Errorf("%w: %s: %w", handlers.ErrInvalid, origin(f.Name), err)
		}
	})
	return failed
}

// readConfig reads the YAML file. Every key has to be a flag of some command.
func readConfig(path string, cmd *cobra.Command) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: --config: %w", handlers.ErrInvalid, err)
	}
	var raw map[string]any
	if err := yaml.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("%w: --config %s: %w", handlers.ErrInvalid, path, err)
	}
	known := map[string]bool{}
	for _, c := range append(allCommands(cmd.Root()), cmd.Root()) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	}
	values := map[string]string{}
	for key, value := range raw {
		if !known[key] || slices.Contains(notFromOutside[:2], key) {
			return nil, fmt.Errorf("%w: --config %s: key %q is no flag; keys are flag names without the dashes", handlers.ErrInvalid, path, key)
		}
		switch value.(type) {
		case string, int, float64, bool:
			values[key] = fmt.Sprint(value)
		default:
			return nil, fmt.Errorf("%w: --config %s: key %q: give a single value", handlers.ErrInvalid, path, key)
		}
	}
	return values, nil
}

func allCommands(root *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, c := range root.Commands() {
		all = append(append(all, c), allCommands(c)...)
	}
	return all
}

func newLogger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("%w: --log-level %q: use debug, info, warn or error", handlers.ErrInvalid, level)
	}
	if format == "" {
		format = "json"
		if isTerminal(os.Stderr) {
			format = "text"
		}
	}
	switch format {
	case "text":
		return slog.New(newTextHandler(os.Stderr, l, isTerminal(os.Stderr))), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
	}
	return nil, fmt.Errorf("%w: --log-format %q: use text or json", handlers.ErrInvalid, format)
}

// print writes what a command has to say: value as JSON, or text.
func (g *globals) print(cmd *cobra.Command, value any, text func() string) error {
	if g.output == "json" {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), text())
	return err
}

// usage is the error for a wrong command line.
func usage(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w: %w; see `%s --help`", handlers.ErrInvalid, err, cmd.CommandPath())
}

// exact gives errors of cobra itself (unknown command, wrong arguments) their class.
func exact(root *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	message := err.Error()
	for _, cobras := range []string{"unknown command", "accepts ", "requires at least", "required flag", "if any flags"} {
		if strings.HasPrefix(message, cobras) {
			return usage(root, err)
		}
	}
	return err
}

// group is what a command does that only has commands below it.
func group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, fmt.Errorf("unknown command %q", args[0]))
	}
	return cmd.Help()
}

// jobArg is cobra.Args for commands about one job.
func jobArg(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage(cmd, fmt.Errorf("give exactly one job"))
	}
	return handlers.CheckName(args[0])
}
