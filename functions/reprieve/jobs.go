package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/functions/internal/app"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

func jobsCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "jobs", Short: "List, show, submit, cancel and retry jobs", RunE: group}
	cmd.AddCommand(jobsList(g), jobsShow(g), jobsSubmit(g),
		jobsChange(g, "cancel", "End a job; its supervisor stops the command within a heartbeat",
			func(j handlers.Job) (handlers.Job, error) { return j.Cancel("reprieve jobs cancel", time.Now()) }),
		jobsChange(g, "retry", "Start an ended or interrupted job again, from its newest checkpoint and with fresh budgets",
			func(j handlers.Job) (handlers.Job, error) { return j.Retry(time.Now()) }))
	return cmd
}

func jobsList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List all jobs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := g.OpenCatalog(cmd.Context())
			if err != nil {
				return err
			}
			jobs := []handlers.Job{}
			for name, err := range c.Names(cmd.Context()) {
				if err != nil {
					return err
				}
				job, err := c.Get(cmd.Context(), name)
				if errors.Is(err, handlers.ErrNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				jobs = append(jobs, job)
			}
			return g.print(cmd, jobs, func() string {
				if len(jobs) == 0 {
					return "no jobs in " + g.Store + "\n"
				}
				return table("JOB\tSTATE\tATTEMPT\tSTEP\tPREEMPTIONS\tFAILURES\tUPDATED\tWHY", func(add func(...any)) {
					for _, j := range jobs {
						step := "-"
						if n := len(j.Checkpoints); n > 0 {
							step = fmt.Sprint(j.Checkpoints[n-1].Step)
						}
						add(j.Name, j.State, j.Attempt, step, j.Preemptions, j.Failures, ago(j.Updated), j.Cause)
					}
				})
			})
		},
	}
}

func jobsShow(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "show JOB", Short: "Show one job", Args: jobArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := g.OpenCatalog(cmd.Context())
			if err != nil {
				return err
			}
			job, err := find(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return g.print(cmd, job, func() string { return describe(job) })
		},
	}
}

func describe(j handlers.Job) string {
	var b strings.Builder
	line := func(key string, value any) { fmt.Fprintf(&b, "%-12s %v\n", key, value) }
	line("job", j.Name)
	state := string(j.State)
	if j.Cause != "" {
		state += " (" + j.Cause + ")"
	}
	line("state", state)
	if j.Detail != "" {
		line("why", j.Detail)
	}
	line("attempt", j.Attempt)
	line("restarter", j.Restarter)
	for _, c := range j.Claims {
		line("runs on", fmt.Sprintf("%s, host %s, pid %d, since %s", c.Node, c.Host, c.PID, c.At.Format(time.RFC3339)))
	}
	if j.Notice != nil && j.Notice.Deadline != nil {
		line("notice", fmt.Sprintf("%s, until %s", j.Notice.Kind, j.Notice.Deadline.Format(time.RFC3339)))
	}
	if j.RetryAt != nil {
		line("next start", "after "+j.RetryAt.Format(time.RFC3339))
	}
	line("preemptions", j.Preemptions)
	line("failures", j.Failures)
	if j.Base != nil {
		line("resumed from", fmt.Sprintf("step %d (checkpoint %s)", j.Base.Step, j.Base))
	}
	line("checkpoints", len(j.Checkpoints))
	if n := len(j.Checkpoints); n > 0 {
		newest := j.Checkpoints[n-1]
		line("newest", fmt.Sprintf("step %d, %s, %s", newest.Step, size(newest.Bytes), ago(newest.Committed)))
	}
	line("created", j.Created.Format(time.RFC3339))
	line("updated", j.Updated.Format(time.RFC3339))
	if len(j.Outbox) > 0 {
		line("unpublished", fmt.Sprintf("%d events", len(j.Outbox)))
	}
	return b.String()
}

func jobsSubmit(g *globals) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "submit JOB --launch FILE", Short: "Create a job and launch its first attempt", Args: jobArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usage(cmd, errors.New("--launch is missing: give a launch spec file"))
			}
			spec, err := app.ReadLaunch(file)
			if err != nil {
				return err
			}
			c, uid, err := g.OpenCatalog(cmd.Context())
			if err != nil {
				return err
			}
			job := handlers.NewJob(args[0], app.NewID(), handlers.RestarterReprieve, spec, time.Now())
			if err := c.Create(cmd.Context(), job); err != nil {
				if errors.Is(err, handlers.ErrConflict) {
					return fmt.Errorf("%w: there is a job %s already: take another name, or `reprieve jobs retry %s`", handlers.ErrConflict, job.Name, job.Name)
				}
				return err
			}
			if err := g.Launchers(uid).Launch(cmd.Context(), job); err != nil {
				return fmt.Errorf("the job is created, but its first attempt could not be launched: %w", err)
			}
			return g.print(cmd, job, func() string { return fmt.Sprintf("%s is launched as %s\n", job.Name, job.LaunchName()) })
		},
	}
	cmd.Flags().StringVar(&file, "launch", "", "launch spec (YAML): how to start the job, also after each interruption")
	return cmd
}

// jobsChange is a command that moves one job by a person's will.
func jobsChange(g *globals, verb, short string, change func(handlers.Job) (handlers.Job, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " JOB", Short: short, Args: jobArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, uid, err := g.OpenCatalog(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := find(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			job, err := c.Update(cmd.Context(), args[0], change)
			if errors.Is(err, handlers.ErrIgnored) {
				return g.print(cmd, job, func() string { return fmt.Sprintf("%s is %s already\n", job.Name, job.State) })
			}
			if err != nil {
				return err
			}
			if job.State == handlers.Resuming {
				if err := g.Launchers(uid).Launch(cmd.Context(), job); err != nil {
					return err
				}
			}
			if err := g.publish(cmd.Context(), c, job); err != nil {
				return err
			}
			return g.print(cmd, job, func() string {
				text := fmt.Sprintf("%s is %s (attempt %d)\n", job.Name, job.State, job.Attempt)
				if job.State == handlers.Interrupted {
					text += "run the job's command again: it goes on from its newest checkpoint\n"
				}
				return text
			})
		},
	}
}

// publish says what a command changed, if there is a bus; the watch pass does it otherwise.
func (g *globals) publish(ctx context.Context, c *catalog.Catalog, job handlers.Job) error {
	if g.Bus == app.NoBus || len(job.Outbox) == 0 {
		return nil
	}
	b, err := g.OpenBus(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	return app.Publish(ctx, b, c, job)
}

func find(ctx context.Context, c *catalog.Catalog, name string) (handlers.Job, error) {
	job, err := c.Get(ctx, name)
	if errors.Is(err, handlers.ErrNotFound) {
		return job, fmt.Errorf("%w: there is no job %s in this store; see `reprieve jobs list`", handlers.ErrNotFound, name)
	}
	return job, err
}
