package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/functions/internal/app"
	"github.com/reprieve-dev/reprieve/handlers"
)

func demoCommand(g *globals, code *int) *cobra.Command {
	d := app.Demo{}
	cmd := &cobra.Command{
		Use: "demo", Short: "Watch a training job being preempted and surviving, on this machine", Args: cobra.NoArgs,
		Long: `demo starts a control plane, two "nodes" (own directory, own process tree, own metadata service) and
a small real training job. It sends a preemption notice to the first node, lets it die, and proves
that the job finishes on the second with the very model of an uninterrupted run.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("%w: find this program: %w", handlers.ErrUnavailable, err)
			}
			if d.Trainer == "" {
				d.Trainer = filepath.Join(filepath.Dir(self), "trainer")
			}
			if _, err := os.Stat(d.Trainer); err != nil {
				return fmt.Errorf("%w: --trainer: %w; `make build` puts it beside reprieve", handlers.ErrInvalid, err)
			}
			d.Self, d.Out, d.Colour = self, cmd.OutOrStdout(), isTerminal(os.Stdout)
			d.Log = slog.New(slog.DiscardHandler)
			result, err := d.Run(cmd.Context())
			if err != nil {
				*code = app.ExitFailure
				return err
			}
			if g.output == "json" {
				return g.print(cmd, result, nil)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&d.Trainer, "trainer", "", "the example trainer (default: beside reprieve)")
	cmd.Flags().BoolVar(&d.Keep, "keep", false, "keep the demo's directory, to look around in it")
	return cmd
}
