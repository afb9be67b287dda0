// Package model runs the real handlers, catalog and claims through every interleaving of small
// bounded worlds: one storage operation at a time, with crashes, writes of unknown outcome, leases
// that run out under living processes, events that are lost or repeated, and people who interfere.
//
// It does not test supervisors (a script of what they say to the store stands for them), several
// ranks, or deletion.
package model
