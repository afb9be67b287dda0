// Command reprieve keeps training jobs on preemptible machines alive; `reprieve help` says how.
// One file per command; everything that knows an adapter is in functions/internal/app.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/functions/internal/app"
)

func main() {
	code, err := execute(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "reprieve: "+strings.TrimPrefix(err.Error(), "invalid: "))
		if code == 0 {
			code = app.ExitCode(err)
		}
	}
	os.Exit(code)
}

// execute runs the command line. code is what the command asks for; 0 with an error: the error's.
func execute(args []string) (code int, err error) {
	ctx := context.Background()
	if len(args) == 0 || args[0] != "run" { // run has its own way with signals
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
	}
	g := &globals{}
	root := &cobra.Command{
		Use:   "reprieve",
		Short: "Keeps training jobs on preemptible machines alive",
		Long: `Reprieve makes a verified checkpoint durable before a preempted machine dies,
starts the job again on a fresh node from that checkpoint, and deletes what nobody needs.

On the node:   reprieve run --job J --store URL --checkpoint-dir D -- COMMAND
Anywhere:      reprieve serve --store URL --bus nats+embedded://
See it work:   reprieve demo`,
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return g.load(cmd)
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })
	g.flags(root.PersistentFlags())
	root.AddCommand(
		runCommand(g, &code), serveCommand(g), jobsCommand(g), checkpointsCommand(g), restoreCommand(g),
		eventsCommand(g), noticeCommand(g), demoCommand(g, &code), versionCommand(g),
	)
	root.SetArgs(args)
	return code, exact(root, root.ExecuteContext(ctx))
}

func versionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
			}{Version: "devel"}
			if info, ok := debug.ReadBuildInfo(); ok {
				v.Version, v.Go = info.Main.Version, info.GoVersion
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						v.Revision = s.Value
					}
				}
			}
			return g.print(cmd, v, func() string { return fmt.Sprintf("reprieve %s (%s)\n", v.Version, v.Go) })
		},
	}
}
