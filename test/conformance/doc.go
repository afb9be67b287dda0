// Package conformance holds the runs of the conformance suites that need modules which the product
// must not depend on: the S3 adapter against servers that others wrote.
package conformance
