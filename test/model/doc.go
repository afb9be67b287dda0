// Package model runs the real handlers, catalog and attempts through every interleaving of small
// bounded worlds, one storage operation at a time: with crashes, writes of unknown outcome, leases
// that run out under living processes, events that are lost or repeated, checkpoints that rot,
// restarts in place, and people who cancel and retry.
//
// A process is a coroutine whose store, bus and platform stop it before each operation (remote.go).
// It depends on nothing but the answers, so its executions are remembered as a tree (proc.go): the
// code under test runs once for each history of one process, not once for each state of the whole. A
// state is a mem store, a place in such a tree for each process, and what may still go wrong
// (state.go); the explorer visits all that can follow (explorer.go, outside.go), except orders of
// operations that commute (order.go). spec.go says what must hold, written from the protocol and not
// from the code; fair.go goes on without faults wherever nobody is at work, and wants the job to end.
//
// What it does not do: the child, the files and the signals of a supervisor (a script of what it says
// to the store stands for it), several ranks, deletion, and clocks that differ.
package model
