"""Pictures of plans; reads them, changes nothing; installed as fxmem.visualize."""
