package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/functions/internal/app"
	"github.com/reprieve-dev/reprieve/handlers"
)

func checkpointsCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "checkpoints", Short: "List the checkpoints of a job", RunE: group}
	cmd.AddCommand(&cobra.Command{
		Use: "list JOB", Short: "List the checkpoints that the job can resume from, newest first", Args: jobArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := g.OpenCatalog(cmd.Context())
			if err != nil {
				return err
			}
			job, err := find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			list := slices.Clone(job.Checkpoints)
			slices.Reverse(list)
			if list == nil {
				list = []handlers.Checkpoint{}
			}
			return g.print(cmd, list, func() string {
				if len(list) == 0 {
					return job.Name + " has no committed checkpoint\n"
				}
				return table("CHECKPOINT\tSTEP\tATTEMPT\tSIZE\tFILES\tFROM\tCOMMITTED", func(add func(...any)) {
					for _, c := range list {
						from := "-"
						if c.Base != nil {
							from = c.Base.String()
						}
						add(c.Ref, c.Step, c.Attempt, size(c.Bytes), c.Files, from, c.Committed.Format(time.RFC3339))
					}
				})
			})
		},
	})
	return cmd
}

func restoreCommand(g *globals) *cobra.Command {
	step := int64(-1)
	cmd := &cobra.Command{
		Use: "restore JOB DIR", Short: "Put the newest checkpoint that verifies into a directory",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage(cmd, errors.New("give a job and a directory"))
			}
			return handlers.CheckName(args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := g.OpenCatalog(cmd.Context())
			if err != nil {
				return err
			}
			job, err := find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			dir, err := filepath.Abs(args[1])
			if err != nil {
				return fmt.Errorf("%w: DIR: %w", handlers.ErrInvalid, err)
			}
			r, err := app.Restore(cmd.Context(), c, job, dir, step, g.Log)
			if err != nil {
				return err
			}
			return g.print(cmd, r, func() string {
				return fmt.Sprintf("%s: step %d (checkpoint %s, %s), %s\n", r.Path, r.Step, r.Checkpoint, size(r.Bytes), r.Why)
			})
		},
	}
	cmd.Flags().Int64Var(&step, "step", -1, "this step instead of the newest")
	return cmd
}
