package faults_test

import (
	"os"
	"testing"

	"runledger/internal/stacktest"
)

func TestMain(m *testing.M) { os.Exit(stacktest.Main(m, "runledger/e2e/faultworker")) }
